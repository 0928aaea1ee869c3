"""List what is read of the nodes at each scrape.

Label values come from the operator: the addresses of nodes, and their names, releases and levels.
"""

from collections.abc import Callable, Sequence

from toolgate.server.base.reports.metric_rows import MetricRow, Values, counter, gauge
from toolgate.server.features.nodes.report import NodeReport


def node_rows(list_nodes: Callable[[], Sequence[NodeReport]]) -> list[MetricRow]:
    """Return the rows of the nodes where commands run. What a node has not said has no value."""

    def read(value: Callable[[NodeReport], float | None]) -> Callable[[], Values]:
        def values() -> Values:
            found = [(node.address, value(node)) for node in list_nodes()]
            return [((name,), number) for name, number in found if number is not None]

        return values

    def read_load(field: str) -> Callable[[], Values]:
        return read(lambda node: None if node.load is None else getattr(node.load, field))

    return [
        gauge("toolgate_node_up", "1 if the node answers.", read(lambda node: node.is_reachable), "node"),
        gauge(
            "toolgate_node_info",
            "Name, version and sandbox of a node.",
            lambda: [((node.address, node.name, node.release, node.level), 1) for node in list_nodes()],
            *("node", "name", "version", "level"),
        ),
        gauge(
            "toolgate_node_round_trip_seconds",
            "Time of the newest answer to the server's own question.",
            read(lambda node: None if node.load is None else node.round_trip),
            "node",
        ),
        gauge("toolgate_node_requests_running", "Requests without an answer.", read(lambda node: node.waiting), "node"),
        counter("toolgate_node_requests_failed", "Requests never answered.", read(lambda node: node.failures), "node"),
        gauge("toolgate_node_people", "People with a workspace at the node.", read_load("people"), "node"),
        gauge(
            "toolgate_node_commands_running",
            "Running commands at the node, of all servers.",
            read(lambda node: None if node.load is None else node.load.foreground + node.load.background),
            "node",
        ),
        gauge("toolgate_node_pages_running", "Pages and pictures read there.", read_load("pages_running"), "node"),
        gauge("toolgate_node_pages_waiting", "Those that wait for it.", read_load("pages_waiting"), "node"),
        gauge("toolgate_node_disk_free_bytes", "Free bytes of the node's disk.", read_load("disk_free"), "node"),
        gauge("toolgate_node_memory_free_bytes", "Free bytes of its memory.", read_load("memory_free"), "node"),
    ]

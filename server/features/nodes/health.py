"""Describe the nodes as parts of a server's health: for `/ready`, and for the first page."""

from collections.abc import Sequence

from toolgate.server.base.reports.health import MemberHealth, PartHealth
from toolgate.server.base.text import format_size
from toolgate.server.features.nodes.report import NodeLoad, NodeReport

MAX_AWAY = 5  # nodes that are named


def describe_nodes(nodes: Sequence[NodeReport]) -> PartHealth:
    """Return the health of the nodes. The server is not ready once none of them answers."""
    away = [node for node in nodes if not node.is_reachable]
    members, named = [_describe(node) for node in nodes], [ascii(node.address)[1:-1] for node in away][:MAX_AWAY]
    if len(away) < len(nodes):
        return PartHealth(members, away=named)
    return PartHealth(
        members,
        fault=f"no node answers: {', '.join(named)}{', ...' if len(nodes) > len(named) else ''}",
        problem="No node answers",
        names=[node.name or node.address for node in away],
        consequence=", so no command can run now. Those that run there may go on.",
        tag="no commands",
        away=named,
    )


def _describe(node: NodeReport) -> MemberHealth:
    details = [f"Toolgate {node.release}", f"sandbox {node.level}"] if node.release else []
    if node.load is not None:
        details += _list_load(node.load)
    return MemberHealth(f"Node {node.name} at" if node.name else "Node", node.is_reachable, node.address, details)


def _list_load(load: NodeLoad) -> list[str]:
    told = [f"{load.people} with a workspace", f"{load.foreground + load.background} running"]
    told += [f"{format_size(load.disk_free)} of disk free"] if load.disk_free is not None else []
    return told + ([f"{format_size(load.memory_free)} of memory free"] if load.memory_free is not None else [])

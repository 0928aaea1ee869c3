"""Describe whether this server can answer calls: its nodes, PostgreSQL and Redis, each by its name."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import msgspec

from toolgate.server.workspaces.node_report import NodeReport

READY, ENDING = "ready", "ending"
MAX_AWAY = 5  # nodes that are named
AWAY = 3.0  # seconds without Redis or PostgreSQL after which this server is not ready: they may have been restarted


class BackendReport(Protocol):
    """What is known of PostgreSQL or of Redis. `seconds`: since when it is reachable, or since it last answered."""

    @property
    def is_reachable(self) -> bool: ...

    @property
    def seconds(self) -> float: ...


class BackendHealth(msgspec.Struct, frozen=True):
    """PostgreSQL or Redis, by its `name`. `is_missed`: it has been away for so long that the server is not ready."""

    name: str
    is_reachable: bool
    is_missed: bool


class ServerHealth(msgspec.Struct, frozen=True):
    """The health of this server. `sandbox` is the level of commands. `nodes` and `backends` are those that it uses:
    none where its own process does their work."""

    is_ending: bool
    sandbox: str
    nodes: Sequence[NodeReport] = ()
    backends: Sequence[BackendHealth] = ()

    @property
    def nodes_away(self) -> Sequence[NodeReport]:
        return [node for node in self.nodes if not node.is_reachable]

    @property
    def has_no_node(self) -> bool:
        """Whether no command can run, since no node answers."""
        return bool(self.nodes) and len(self.nodes_away) == len(self.nodes)

    @property
    def backends_away(self) -> Sequence[BackendHealth]:
        return [backend for backend in self.backends if backend.is_missed]

    @property
    def status(self) -> str:
        """READY, ENDING, or what does not answer, by name."""
        if self.is_ending:
            return ENDING
        away = self._name_nodes_away()
        nodes = [f"no node answers: {', '.join(away)}{', ...' if len(self.nodes) > len(away) else ''}"]
        faults = nodes if self.has_no_node else []
        return "; ".join([*faults, *(f"{each.name} does not answer" for each in self.backends_away)]) or READY

    def describe(self) -> dict[str, Any]:
        """Return the answer of `/ready`; `away` names nodes that do not answer."""
        away = self._name_nodes_away()
        return {"status": self.status, "sandbox": self.sandbox} | ({"away": away} if away else {})

    def _name_nodes_away(self) -> list[str]:
        return [ascii(node.address)[1:-1] for node in self.nodes_away][:MAX_AWAY]


def read_backends(health: Mapping[str, Callable[[], BackendReport]]) -> list[BackendHealth]:
    """Return the health of each backend, by its name."""
    found = [(name, read()) for name, read in health.items()]
    return [
        BackendHealth(name, each.is_reachable, not each.is_reachable and each.seconds > AWAY) for name, each in found
    ]

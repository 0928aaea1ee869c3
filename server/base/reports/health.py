"""Describe whether this server can answer calls: what it uses elsewhere, each by its name."""

from collections.abc import Sequence
from typing import Any, Protocol

import msgspec

READY, ENDING = "ready", "ending"
AWAY = 3.0  # seconds without Redis or PostgreSQL after which this server is not ready: they may have been restarted


class MemberHealth(msgspec.Struct, frozen=True):
    """One database or machine that a server uses. The page shows its `title`, `address` and `details`."""

    title: str
    is_reachable: bool
    address: str = ""
    details: Sequence[str] = ()


class PartHealth(msgspec.Struct, frozen=True):
    """Something that a server uses elsewhere: a database, or the machines where commands run.

    fault: why the server is not ready, for `/ready`; "" while it is
    problem, names, consequence: the same as a sentence; people who have not signed in do not see the names
    tag: a word or two for that
    away: the names of members that do not answer, for `/ready`
    """

    members: Sequence[MemberHealth]
    fault: str = ""
    problem: str = ""
    names: Sequence[str] = ()
    consequence: str = ""
    tag: str = "not ready"
    away: Sequence[str] = ()


class ServerHealth(msgspec.Struct, frozen=True):
    """The health of this server. `sandbox` is the level of commands. `parts` are what it uses elsewhere: none where
    its own process does all the work."""

    is_ending: bool
    sandbox: str
    parts: Sequence[PartHealth] = ()

    @property
    def faults(self) -> Sequence[PartHealth]:
        return [part for part in self.parts if part.fault]

    @property
    def tag(self) -> str:
        """A word or two for the faults: that of the last one, since features that run commands come last."""
        return self.faults[-1].tag

    @property
    def members(self) -> Sequence[MemberHealth]:
        return [member for part in self.parts for member in part.members]

    @property
    def status(self) -> str:
        """READY, ENDING, or what does not answer, by name."""
        if self.is_ending:
            return ENDING
        return "; ".join(part.fault for part in self.faults) or READY

    def describe(self) -> dict[str, Any]:
        """Return the answer of `/ready`; `away` names what does not answer."""
        away = [name for part in self.parts for name in part.away]
        return {"status": self.status, "sandbox": self.sandbox} | ({"away": away} if away else {})


class BackendReport(Protocol):
    """What is known of PostgreSQL or of Redis. `seconds`: since when it is reachable, or since it last answered."""

    @property
    def is_reachable(self) -> bool: ...

    @property
    def seconds(self) -> float: ...


def describe_backend(name: str, report: BackendReport) -> PartHealth:
    """Return the health of PostgreSQL or Redis. It is missed once it has been away for so long that no restart is
    the reason."""
    members = [MemberHealth(name, report.is_reachable)]
    if report.is_reachable or report.seconds <= AWAY:
        return PartHealth(members)
    problem = f"{name} does not answer"
    return PartHealth(members, fault=problem, problem=problem, consequence=". Calls may fail until it does.")

"""Define one attempt: its script, and the levels that must stop it."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tests.escape.ground import Ground

LEVELS = ("bwrap", "uid", "none")
SANDBOXED = frozenset({"bwrap", "uid"})
EVERYWHERE = frozenset(LEVELS)
BWRAP = frozenset({"bwrap"})


@dataclass(frozen=True, slots=True)
class Attempt:
    """An attempt to escape.

    `script` is Python, or bash if `bash` is set. It runs as the hostile principal. Its output holds the word in
    $ESCAPED only if it succeeded: each secret outside is that word. Without its target on this machine it prints
    ABSENT. `act` is done by the principal's client instead, and returns what it got. `stopped` are the levels that must
    stop it. At other levels, as root, it must succeed, which shows that it is one, unless `unsure` leaves that to the
    machine. `untried` says why it is not made there. `alone`: it disturbs others. `dear`: it takes seconds of both
    processors. `rooted`: it is stopped if the server is root; `grouped`: if that has control groups. `limit` is the one
    that it would evade."""

    name: str
    script: str = ""
    act: "Callable[[Ground], str] | None" = None
    stopped: frozenset[str] = SANDBOXED
    unsure: frozenset[str] = frozenset()
    untried: Mapping[str, str] = field(default_factory=dict)
    bash: bool = False
    alone: bool = False
    dear: bool = False
    rooted: bool = False
    grouped: bool = False
    limit: str = ""

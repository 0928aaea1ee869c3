"""One attempt: what is tried, and where it must fail. Knows nothing of how it is run."""

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
    """`script` is Python, or for bash where `bash` says so. It runs as the hostile principal, and what it prints holds
    the word in $ESCAPED only when it got what it wanted: a secret outside is that word. Where there is nothing of the
    kind on this machine it prints ABSENT. `act` is done from outside instead, by the principal's client, and gives what
    it got. `stopped` are the levels that must stop it; at each other, as root, it must come off, which shows that it is
    one, but where `unsure` says that this is the machine's to decide. `untried` says why it is not made there.
    `alone`: it disturbs others. `dear`: it takes seconds of both processors. `rooted`: it is stopped where the server
    is root; `grouped`: where that has control groups. `limit` is the one that it would evade."""

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

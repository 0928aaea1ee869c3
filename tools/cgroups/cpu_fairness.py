"""Lets groups that have used much of the processor lately give way to all others. Knows groups; not whose they are.

Such a group keeps a tenth of its weight: at full speed on an idle machine, and slower where others want the processor,
while who asks for little is served at once. Among those that give way it is fair again. With equal weights a short
command waits behind every turn of a busy loop, and unequal ones from the start have to know whom to favour.
"""

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from toolgate.tools.cgroups.group import Group

EVERY = 0.5  # seconds between two looks
MUCH = 0.9  # of one processor, since the last look: a loop, not one short command after the other
LITTLE = 0.25
QUIET = 6  # looks in a row that find little, until a group need not give way any more


@dataclass(slots=True)
class Seen:
    at: float
    seconds: float
    gives_way: bool = False
    quiet: int = 0


class Manners:
    """What was seen of each group at the last look."""

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._seen: dict[Group, Seen] = {}

    def look(self, groups: Iterable[Group]) -> None:
        """Look at all groups there are. Blocks for some reads; one that no controller counts is left alone."""
        now = self._now()
        held: dict[Group, Seen] = {}
        for group in groups:
            used = group.cpu_seconds()
            if used is not None:
                held[group] = _judged(group, self._seen.get(group) or Seen(now, used), now, used)
        self._seen = held


def _judged(group: Group, seen: Seen, now: float, used: float) -> Seen:
    share = (used - seen.seconds) / max(now - seen.at, EVERY)
    seen.at, seen.seconds = now, used
    seen.quiet = seen.quiet + 1 if share < LITTLE else 0
    if share > MUCH and not seen.gives_way:
        seen.gives_way = group.give_way(True)
    elif seen.gives_way and seen.quiet >= QUIET:
        seen.gives_way = not group.give_way(False)
    return seen

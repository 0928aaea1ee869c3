"""Who may go next, where only so many can: not simply who came first. Knows no connections."""

import asyncio
import contextlib
from collections import OrderedDict
from collections.abc import AsyncGenerator
from dataclasses import dataclass
from operator import attrgetter
from typing import NamedTuple


@dataclass(slots=True, eq=False)
class Tally:
    """How many engines a search has heard from, or are at it."""

    engines: int = 0


class Waiting(NamedTuple):
    called: "asyncio.Future[None]"
    tally: Tally


FEWEST = attrgetter("tally.engines")
NEW = Tally()


class Turns:
    """At most `most` at once. Whoever has a thousand waiting holds up nobody who has one.

    Of what one has waiting, that goes first whose search has fewest engines, and then what came first: so when there is
    more to do than can be done, each search gets something before any gets all.
    """

    def __init__(self, most: int) -> None:
        self._most = self._free = most
        self._lines: OrderedDict[str, list[Waiting]] = OrderedDict()  # who is next first

    @property
    def running(self) -> int:
        return self._most - self._free

    @property
    def waiting(self) -> int:
        return sum(map(len, self._lines.values()))

    @contextlib.asynccontextmanager
    async def turn(self, whose: str, tally: Tally = NEW) -> AsyncGenerator[None]:
        await self._take(whose, tally)
        try:
            yield
        finally:
            self._give_back()

    async def _take(self, whose: str, tally: Tally) -> None:
        mine = Waiting(asyncio.get_running_loop().create_future(), tally)
        self._lines.setdefault(whose, []).append(mine)
        self._serve()
        try:
            await mine.called
        except asyncio.CancelledError:
            if mine.called.cancelled():
                self._leave(whose, mine)
            else:  # its turn had just come
                self._give_back()
            raise

    def _leave(self, whose: str, mine: Waiting) -> None:
        line = self._lines.get(whose, [])
        with contextlib.suppress(ValueError):  # it was its turn already, and it was passed over
            line.remove(mine)
            if not line:
                del self._lines[whose]

    def _give_back(self) -> None:
        self._free += 1
        self._serve()

    def _serve(self) -> None:
        while self._free and self._lines:
            whose, line = self._lines.popitem(last=False)
            first = min(line, key=FEWEST)
            line.remove(first)
            if line:
                self._lines[whose] = line  # at the end
            if not first.called.done():
                self._free -= 1
                first.called.set_result(None)

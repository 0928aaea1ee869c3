"""Queue callers fairly: principals take turns, so one principal's thousand calls delay no other."""

import asyncio
import contextlib
from collections import Counter, OrderedDict
from collections.abc import AsyncGenerator, Callable
from typing import NamedTuple

from toolgate.tools.api.errors import ToolError

Rank = Callable[[], int]


class BusyError(ToolError):
    """No turn came in time, or too many calls of the principal wait already."""


class Waiter(NamedTuple):
    ready: "asyncio.Future[None]"
    rank: Rank


def first_come() -> int:
    return 0


class FairQueue:
    """A queue for `most` slots, `per_principal` of them for one principal, of whose calls `max_waiting` may wait.

    The waiting call with the lowest rank goes first, then the earliest. `what` names the slots in error texts.
    """

    def __init__(
        self, most: int, what: str, *, per_principal: int | None = None, max_waiting: int | None = None
    ) -> None:
        self._most = self._free = most
        self._what = what
        self._share = most if per_principal is None else per_principal
        self._line = max_waiting
        self._taken: Counter[str] = Counter()
        self._lines: OrderedDict[str, list[Waiter]] = OrderedDict()  # who is next first

    @property
    def running(self) -> int:
        return self._most - self._free

    @property
    def waiting(self) -> int:
        return sum(map(len, self._lines.values()))

    @contextlib.asynccontextmanager
    async def slot(self, principal: str, timeout: float | None = None, rank: Rank = first_come) -> AsyncGenerator[None]:
        await self.acquire(principal, timeout, rank)
        try:
            yield
        finally:
            self.release(principal)

    async def acquire(self, principal: str, timeout: float | None = None, rank: Rank = first_come) -> None:
        """Wait for a slot, which `release` frees. Raises BusyError after `timeout` seconds, or at once if the principal
        has too many waiting calls."""
        line = self._lines.setdefault(principal, [])
        if self._line is not None and len(line) >= self._line:
            raise BusyError(f"the server is busy: {len(line)} of your {self._what} are waiting; send fewer at once")
        waiter = Waiter(asyncio.get_running_loop().create_future(), rank)
        line.append(waiter)
        self._serve()
        try:
            async with asyncio.timeout(timeout):
                await waiter.ready
        except BaseException as error:
            if waiter.ready.done() and not waiter.ready.cancelled():
                self.release(principal)  # it came in the same moment
            else:
                self._leave(principal, waiter)
            if isinstance(error, TimeoutError):
                raise BusyError(
                    f"the server is busy: it handles {self._most} {self._what} at once; try again in a minute"
                ) from None
            raise

    def release(self, principal: str) -> None:
        """Free the slot of `principal` for the next call."""
        self._free += 1
        self._taken[principal] -= 1
        if not self._taken[principal]:
            del self._taken[principal]
        self._serve()

    def _leave(self, principal: str, waiter: Waiter) -> None:
        line = self._lines.get(principal, [])
        with contextlib.suppress(ValueError):  # it had its slot already
            line.remove(waiter)
        if not line:
            self._lines.pop(principal, None)

    def _serve(self) -> None:
        while self._free and (principal := self._next()) is not None:
            line = self._lines.pop(principal)
            waiter = min(line, key=lambda waiter: waiter.rank())
            line.remove(waiter)
            if line:
                self._lines[principal] = line  # at the end
            if not waiter.ready.done():
                self._free -= 1
                self._taken[principal] += 1
                waiter.ready.set_result(None)

    def _next(self) -> str | None:
        """Return the next waiting principal below its share."""
        return next((principal for principal in self._lines if self._taken[principal] < self._share), None)

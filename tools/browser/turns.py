"""Who goes next: so many at once, and of those that wait each principal in turn. Knows nothing of what they do."""

import asyncio
import contextlib
from collections import deque

MAX_WAITING = 512  # beyond it nobody's turn comes in time


class Full(Exception):
    """Too many wait already."""


class Turns:
    """`most` at once. A turn that was taken is given back by `give`."""

    def __init__(self, most: int) -> None:
        self._most = self._free = most
        self._waiting: dict[str, deque[asyncio.Future[None]]] = {}  # who is first in it is served next

    @property
    def running(self) -> int:
        return self._most - self._free

    @property
    def waiting(self) -> int:
        return sum(map(len, self._waiting.values()))

    async def take(self, principal: str, timeout: float) -> None:
        """Raises TimeoutError, and Full at once."""
        if self._free:
            self._free -= 1
            return
        if self.waiting >= MAX_WAITING:
            raise Full
        turn = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(principal, deque()).append(turn)
        try:
            async with asyncio.timeout(timeout):
                await turn
        except BaseException:
            if turn.done() and not turn.cancelled():
                self.give()  # it came in the same moment
            else:
                self._leave(principal, turn)
            raise

    def give(self) -> None:
        """Let the next one have it."""
        while self._waiting:
            principal, line = next(iter(self._waiting.items()))
            turn = line.popleft()
            del self._waiting[principal]
            if line:
                self._waiting[principal] = line  # at the end
            if not turn.done():
                turn.set_result(None)
                return
        self._free += 1

    def _leave(self, principal: str, turn: asyncio.Future[None]) -> None:
        line = self._waiting.get(principal, deque())
        with contextlib.suppress(ValueError):
            line.remove(turn)
        if not line:
            self._waiting.pop(principal, None)

"""Share room for bytes between principals, so that none of them can take all of it."""

import asyncio
from collections import deque


class FairRoom:
    """Room for `total` bytes (or whatever is counted). An owner that holds some gets more only while it holds no more
    than what is left free: one alone gets half of the room, and the next one half of the rest.
    """

    def __init__(self, total: int) -> None:
        self.total = total
        self.used = 0
        self._held: dict[str, int] = {}
        self._queues: dict[str, deque[tuple[int, asyncio.Future[None]]]] = {}

    def fits(self, owner: str, size: int) -> bool:
        held = self._held.get(owner, 0)
        free = self.total - self.used
        return size <= max(free, 0) and (not held or held + size <= free)

    def take(self, owner: str, size: int) -> None:
        """Count what the owner holds more (or less, if `size` is negative), whether or not it fits."""
        self.used += size
        held = self._held.get(owner, 0) + size
        if held:
            self._held[owner] = held
        else:
            self._held.pop(owner, None)
        if size < 0 and self._queues:
            self._admit()

    def release(self, owner: str, size: int) -> None:
        self.take(owner, -size)

    async def acquire(self, owner: str, size: int) -> None:
        """Take room as soon as it fits. What one owner waits for comes in order."""
        if owner not in self._queues and self.fits(owner, size):
            self.take(owner, size)
            return
        admitted = asyncio.get_running_loop().create_future()
        self._queues.setdefault(owner, deque()).append((size, admitted))
        try:
            await admitted
        except asyncio.CancelledError:
            if admitted.done() and not admitted.cancelled():
                self.release(owner, size)
            else:
                self._admit()  # what is behind it may fit
            raise

    def _admit(self) -> None:
        for owner, queue in list(self._queues.items()):
            while queue and (queue[0][1].done() or self.fits(owner, queue[0][0])):
                size, admitted = queue.popleft()
                if not admitted.done():
                    self.take(owner, size)
                    admitted.set_result(None)
            if not queue:
                self._queues.pop(owner, None)

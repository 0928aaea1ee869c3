"""Queue the starts of sandboxes, so that a burst of new people takes longer and fails for none.

A start costs about a tenth of a second of processor time. If all began at once, each would exceed its time limit.
"""

import asyncio
import os

from toolgate.tools.api.concurrency.fair_queue import FairQueue

PER_PROCESSOR = 2  # starts at once: one may wait for the disk while the other computes
PATIENCE = 36.0  # seconds that a command waits for its turn: most of the usual --hold


class StartQueue:
    """The starts of a server's sandboxes: `most` at once, the oldest next. One principal has half of them at most.

    A command waits `patience` seconds for its turn.
    """

    def __init__(self, most: int = 0, patience: float = PATIENCE) -> None:
        """`most` 0: PER_PROCESSOR for each that this process may use."""
        most = most or PER_PROCESSOR * _count_processors()
        self.patience = patience
        self.refusal = f"the server is busy: it starts {most} sandboxes at once; try again in a minute"
        self._queue = FairQueue(most, "starts of sandboxes", per_principal=max(1, most // 2))
        self.acquire = self._queue.acquire
        self.release = self._queue.release


class StartWait:
    """The wait of one command for the start of its sandbox."""

    def __init__(self) -> None:
        self._left: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def wait(self, start: "asyncio.Future[None]", patience: float) -> None:
        """Wait for the start, `patience` seconds at most, or until `leave`."""
        await asyncio.wait([start, self._left], timeout=patience, return_when=asyncio.FIRST_COMPLETED)

    def leave(self) -> None:
        """Wait no longer."""
        if not self._left.done():
            self._left.set_result(None)


def _count_processors() -> int:
    if hasattr(os, "sched_getaffinity"):  # Linux
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1

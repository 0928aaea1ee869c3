"""Has one engine's pages read in a worker: all that its questions have ready in one job. Knows nothing of pages.

In one job, since under load the way to a worker takes longer than what is done there; and of one engine, so that a
page which takes for ever to read holds up its own engine alone.
"""

import asyncio
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from toolgate.tools.search.html_engine import Done, Fault, Jobs, Results, Wording

if TYPE_CHECKING:
    from toolgate.tools.workers.pool import Turn, Workers

T = TypeVar("T")

TOGETHER = 2 * 2**20  # bytes of pages in one job, or one page


class Waiting(NamedTuple):
    job: Wording | Results
    begin: Callable[[], None]
    done: "asyncio.Future[Done]"


class Reader:
    """Of one engine, which has its turn among all engines. A job has `seconds`."""

    def __init__(self, name: str, workers: "Workers", seconds: float) -> None:
        self._name = name
        self._workers = workers
        self._seconds = seconds
        self._waiting: deque[Waiting] = deque()
        self._together: list[Waiting] = []  # at the worker
        self._task: asyncio.Task[None] | None = None

    async def read(self, job: Wording | Results, kind: type[T], begin: Callable[[], None]) -> T:
        """What the worker makes of it; `begin` is called when it gets there. Raises Overtaxed and ToolError, and
        ValueError for a page it stumbles over. When nobody waits any more the worker is ended."""
        waiting = Waiting(job, begin, asyncio.get_running_loop().create_future())
        self._waiting.append(waiting)
        if self._task is None or self._task.done():
            self._task = asyncio.ensure_future(self._work())
        try:
            done = await waiting.done
        except asyncio.CancelledError:
            self._left()
            raise
        if not isinstance(done, kind):
            raise ValueError(done.text if isinstance(done, Fault) else f"{kind.__name__} was asked for")
        return done

    def _left(self) -> None:
        if self._task is not None and all(one.done.done() for one in (*self._waiting, *self._together)):
            self._task.cancel()
            self._task = None
            self._waiting.clear()

    async def _work(self) -> None:
        mine = asyncio.current_task()
        while self._waiting and self._task is mine:
            async with self._workers.turn("search", self._name) as turn:
                together = self._together = self._next()
                if together:
                    await self._read(together, turn)
        if self._task is mine:
            self._task = None

    async def _read(self, together: list[Waiting], turn: "Turn") -> None:
        for one in together:
            one.begin()
        try:
            jobs = Jobs([one.job for one in together])
            done = await turn.run(jobs, list[Done], timeout=self._seconds)
        except Exception as error:  # noqa: BLE001  # each of those who wait is told
            for one in together:
                if not one.done.done():
                    one.done.set_exception(error)
            return
        for one, result in zip(together, done, strict=True):
            if not one.done.done():
                one.done.set_result(result)

    def _next(self) -> list[Waiting]:
        together: list[Waiting] = []
        size = 0
        while self._waiting and (not together or size + _size(self._waiting[0].job) <= TOGETHER):
            one = self._waiting.popleft()
            if not one.done.done():
                together.append(one)
                size += _size(one.job)
        return together


def _size(job: Wording | Results) -> int:
    return len(job.body) if isinstance(job, Results) else sum(map(len, job.pages.values()))

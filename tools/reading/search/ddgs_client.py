"""Send the pages of one engine to a worker, all that are ready in one job.

One job, because under load the way to a worker takes longer than its work. One engine, so that a page that takes for
ever delays its own engine only.
"""

import asyncio
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from toolgate.tools.reading.search.engine import EngineQuery
from toolgate.tools.reading.search.html_engine import BuildRequestJob, DdgsResult, JobBatch, JobFailure, ReadResultsJob

if TYPE_CHECKING:  # start-up of a worker
    from toolgate.tools.reading.workers.pool import Workers, WorkerTurn

T = TypeVar("T")

TOGETHER = 2 * 2**20  # bytes of pages in one job, unless a single page is larger


class PendingJob(NamedTuple):
    job: BuildRequestJob | ReadResultsJob
    on_start: Callable[[], None]
    result: "asyncio.Future[DdgsResult]"


class DdgsClient:
    """The reader of one engine's pages; the engines take turns. A job has `seconds`."""

    def __init__(self, name: str, workers: "Workers", seconds: float) -> None:
        self._name = name
        self._workers = workers
        self._seconds = seconds
        self._waiting: deque[PendingJob] = deque()
        self._together: list[PendingJob] = []  # at the worker
        self._task: asyncio.Task[None] | None = None

    async def read(self, query: EngineQuery, job: BuildRequestJob | ReadResultsJob, kind: type[T]) -> T:
        """Return the worker's result; the query begins with the job. Raises WorkerLimitError, ToolError, and
        ValueError for an unreadable page. A job without a waiting search is cancelled."""
        waiting = PendingJob(job, query.begin, asyncio.get_running_loop().create_future())
        self._waiting.append(waiting)
        if self._task is None or self._task.done():
            self._task = asyncio.ensure_future(self._work())
        try:
            done = await waiting.result
        except asyncio.CancelledError:
            self._cancel_unless_awaited()
            raise
        if not isinstance(done, kind):
            raise ValueError(done.text if isinstance(done, JobFailure) else f"{kind.__name__} was asked for")
        return done

    def _cancel_unless_awaited(self) -> None:
        if self._task is not None and all(job.result.done() for job in (*self._waiting, *self._together)):
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

    async def _read(self, together: list[PendingJob], turn: "WorkerTurn") -> None:
        for job in together:
            job.on_start()
        try:
            jobs = JobBatch([job.job for job in together])
            done = await turn.run(jobs, list[DdgsResult], timeout=self._seconds)
        except Exception as error:  # noqa: BLE001  # every waiting search gets the error
            for job in together:
                if not job.result.done():
                    job.result.set_exception(error)
            return
        for job, result in zip(together, done, strict=True):
            if not job.result.done():
                job.result.set_result(result)

    def _next(self) -> list[PendingJob]:
        together: list[PendingJob] = []
        size = 0
        while self._waiting and (not together or size + _size(self._waiting[0].job) <= TOGETHER):
            job = self._waiting.popleft()
            if not job.result.done():
                together.append(job)
                size += _size(job.job)
        return together


def _size(job: BuildRequestJob | ReadResultsJob) -> int:
    return len(job.body) if isinstance(job, ReadResultsJob) else sum(map(len, job.pages.values()))

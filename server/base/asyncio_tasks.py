"""Start asyncio tasks, with their first step at once or later, and cancel those that take too long."""

import asyncio
import logging
import sys
from collections.abc import Awaitable, Callable, Coroutine
from time import monotonic
from typing import Any, TypeVar

T = TypeVar("T")

log = logging.getLogger("toolgate")


def start(loop: asyncio.AbstractEventLoop, work: Coroutine[Any, Any, Any]) -> "asyncio.Task[Any]":
    """Return a task for `work`. On Python 3.12 it has already run to its first wait."""
    if sys.version_info >= (3, 12):
        return asyncio.Task(work, loop=loop, eager_start=True)
    return loop.create_task(work)


class DelayedTasks:
    """Background work that starts when the first answers are out. Its failures are logged and cost nothing else."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[None]] = set()

    def start(self, work: Callable[[], Coroutine[Any, Any, None]], seconds: float) -> None:
        """Run `work` after so many seconds."""

        async def later() -> None:
            await asyncio.sleep(seconds)
            try:
                await work()
            except Exception:
                log.exception("background work failed")

        task = asyncio.get_running_loop().create_task(later())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def close(self) -> None:
        """Cancel it all, and wait a second at most."""
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=1.0)


class DeadlineTimer:
    """Cancel tasks that run longer than `seconds`. A task that ends in time costs two dictionary operations; a timer of
    its own (`asyncio.timeout`) would cost a fifth of a small call."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._until: dict[asyncio.Task[Any], float] = {}  # in order, since all tasks get the same time
        self._overdue: set[asyncio.Task[Any]] = set()
        self._timer: asyncio.TimerHandle | None = None

    def watch(self, task: "asyncio.Task[Any]") -> None:
        """Cancel `task` unless `release` is called in time."""
        self._until[task] = monotonic() + self._seconds
        if self._timer is None:
            loop = task.get_loop()
            self._timer = loop.call_later(self._seconds, self._cancel_overdue, loop)

    def release(self, task: "asyncio.Task[Any]") -> bool:
        """Stop watching `task`. Return whether it was overdue; its cancellation is then undone."""
        self._until.pop(task, None)
        if task not in self._overdue:
            return False
        self._overdue.discard(task)
        return task.uncancel() == 0

    async def limit(self, work: Awaitable[T]) -> T:
        """Return the result of `work`, for which the current task waits. Raises TimeoutError if it takes too long."""
        task = asyncio.current_task()
        assert task is not None
        self.watch(task)
        try:
            return await work
        except asyncio.CancelledError:
            if not self.release(task):
                raise
            raise TimeoutError from None
        finally:
            self.release(task)

    def _cancel_overdue(self, loop: asyncio.AbstractEventLoop) -> None:
        self._timer = None
        now = monotonic()
        for task, until in list(self._until.items()):
            if until > now:
                self._timer = loop.call_later(until - now, self._cancel_overdue, loop)
                return
            del self._until[task]
            self._overdue.add(task)
            task.cancel()

"""Start asyncio tasks, with their first step at once or later, and cancel those that take too long."""

import asyncio
import logging
import sys
from collections.abc import Callable, Coroutine
from contextvars import Context
from time import monotonic
from typing import Any

log = logging.getLogger("toolgate")


find_current_task: Callable[[asyncio.AbstractEventLoop], "asyncio.Task[Any] | None"] = asyncio.current_task
if sys.version_info < (3, 12):  # there it is written in Python
    find_current_task = asyncio.tasks._current_tasks.get  # type: ignore[attr-defined]  # pyright: ignore[reportAttributeAccessIssue]

UnstartedTask = tuple[asyncio.Task[Any], list[tuple[Callable[..., object], Context]]]


class _StepCover:
    """Stands in for a loop's `call_soon` while a task is made: takes the task's first step."""

    __slots__ = ("_loop", "steps")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.steps: list[tuple[Callable[..., object], Context]] = []
        self._loop = loop

    def __call__(self, step: Callable[..., object], *rest: Any, context: Context | None = None) -> Any:
        if context is None or rest:  # a finalizer's, which runs meanwhile
            return type(self._loop).call_soon(self._loop, step, *rest, context=context)
        return self.steps.append((step, context))


def start(loop: asyncio.AbstractEventLoop, work: Coroutine[Any, Any, Any]) -> "asyncio.Task[Any]":
    """Return a task that has already run to its first wait: work that never waits costs no turn of the event loop.

    A `PlanMode status` over stdio takes 47 us of processor time this way, and 78 as an ordinary task. The task that
    calls this is not the current one meanwhile (asyncio, "Extending": `_leave_task`). 3.11 only: drop all but
    `eager_start` with requires-python >= 3.12. There a task asks its loop to `call_soon` its first step, so the loop's
    method is replaced meanwhile. If that fails, the task starts as usual.
    """
    if sys.version_info >= (3, 12):
        return asyncio.Task(work, loop=loop, eager_start=True)
    task, steps = create_unstarted(loop, work)
    current = asyncio.current_task(loop)
    if current is not None:
        asyncio.tasks._leave_task(loop, current)
    try:
        for first, context in steps:
            context.run(first)
    finally:
        if current is not None:
            asyncio.tasks._enter_task(loop, current)
    return task


def create_unstarted(loop: asyncio.AbstractEventLoop, work: Coroutine[Any, Any, Any]) -> "UnstartedTask":
    """Return a task and its first step, which the caller runs in the context beside it. If the loop can't be covered,
    it runs the step itself, and the list is empty."""
    cover = _StepCover(loop)
    try:
        loop.call_soon = cover  # type: ignore[method-assign, assignment]
    except AttributeError:
        return loop.create_task(work), []
    try:
        return asyncio.Task(work, loop=loop), cover.steps
    finally:
        del loop.call_soon


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

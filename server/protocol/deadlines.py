"""Cancel tasks that take too long, by one timer for all of them."""

import asyncio
from typing import Any


class DeadlineTimer:
    """At most `seconds` for each task that is taken. One that ends in time costs two dictionary operations: a timer of
    its own (`asyncio.timeout`) would be a fifth of what a small call costs."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._until: dict[asyncio.Task[Any], float] = {}  # loop time; in order, since all get the same
        self._overdue: set[asyncio.Task[Any]] = set()
        self._timer: asyncio.TimerHandle | None = None

    def watch(self, task: "asyncio.Task[Any]") -> None:
        """Cancel `task` unless it is released in time."""
        loop = task.get_loop()
        self._until[task] = loop.time() + self._seconds
        if self._timer is None:
            self._timer = loop.call_later(self._seconds, self._cancel_overdue, loop)

    def release(self, task: "asyncio.Task[Any]") -> bool:
        """Whether `task` was held too long; if so its cancellation was ours, and is hereby undone."""
        self._until.pop(task, None)
        if task not in self._overdue:
            return False
        self._overdue.discard(task)
        return task.uncancel() == 0

    def _cancel_overdue(self, loop: asyncio.AbstractEventLoop) -> None:
        self._timer = None
        now = loop.time()
        for task, until in list(self._until.items()):
            if until > now:
                self._timer = loop.call_at(until, self._cancel_overdue, loop)
                return
            del self._until[task]
            self._overdue.add(task)
            task.cancel()

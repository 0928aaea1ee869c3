"""Start a task and run its first step at once: work that never waits costs no turn of the event loop."""

import asyncio
import sys
from collections.abc import Callable, Coroutine
from typing import Any


def start(loop: asyncio.AbstractEventLoop, work: Coroutine[Any, Any, Any]) -> "asyncio.Task[Any]":
    """Return a task whose coroutine has run up to its first wait: `loop.create_task` for work that mostly never waits.

    A `PlanMode status` over stdio takes 47 us of processor time so, and 78 as an ordinary task. A task that calls this
    is not the current one meanwhile (asyncio, "Extending": `_leave_task`).
    3.11 only: drop all but `eager_start` with requires-python >= 3.12. There a task asks its loop to `call_soon` its
    first step, so the loop's method is covered meanwhile; a loop that can't be covered starts the task as usual.
    """
    if sys.version_info >= (3, 12):
        return asyncio.Task(work, loop=loop, eager_start=True)
    steps: list[Callable[[], object]] = []
    late: list[tuple[Callable[..., object], tuple[Any, ...]]] = []

    covered = lambda step, *rest, context=None: (  # noqa: E731  # a def would build its annotations at every call
        late.append((step, rest)) if context is None or rest else steps.append(lambda: context.run(step))
    )
    try:
        loop.call_soon = covered  # type: ignore[method-assign, assignment]
    except AttributeError:
        return loop.create_task(work)
    try:
        task = asyncio.Task(work, loop=loop)
    finally:
        del loop.call_soon
    for step, rest in late:  # a finalizer's, which ran in between
        loop.call_soon(step, *rest)
    current = asyncio.current_task(loop)
    if current is not None:
        asyncio.tasks._leave_task(loop, current)
    try:
        for first in steps:
            first()
    finally:
        if current is not None:
            asyncio.tasks._enter_task(loop, current)
    return task

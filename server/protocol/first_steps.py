"""Run coroutines to their first wait, and make tasks only of those that wait.

3.11 only: drop all but `eager_start` with requires-python >= 3.12. Source: asyncio, "Extending".
"""

import asyncio
import gc
import sys
import weakref
from collections.abc import Coroutine, Generator
from contextvars import Context, copy_context
from typing import Any

from toolgate.server.protocol import asyncio_tasks

Work = Coroutine[Any, Any, Any]

_enter, _leave = asyncio.tasks._enter_task, asyncio.tasks._leave_task
_count_references, _count_weak_references = sys.getrefcount, weakref.getweakrefcount


class FirstSteps:
    """Run work in one spare task, which the first work that waits keeps.

    So the current task is a real one, as `asyncio.timeout` and cancellation need. The next work gets the same one only
    if this left nothing in it, and nothing else refers to it: neither a plugin's late `task.cancel()` nor what it
    stores for a task may reach another caller's work. Each work has context variables of its own. A small call over
    stdio takes a tenth less processor time than with a task of its own.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._context = copy_context()
        self._spare: _SpareTask | None = None

    def copy_context(self) -> Context:
        """Return a copy of the context variables of this object's creation: a callback may have those of other work."""
        return self._context.copy()

    def run(self, work: Work, context: Context | None = None) -> "asyncio.Task[Any] | None":
        """Run `work` to its first wait, from a callback of the loop, in `context` or in a new `copy_context()`. Return
        the task that goes on with it, or None if it has ended."""
        return self._run(work, self._context.copy() if context is None else context)

    def run_within(self, work: Work) -> "asyncio.Task[Any] | None":
        """Run `work` like `run`, but from other work, and with a copy of its context variables."""
        current = asyncio_tasks.find_current_task(self._loop)
        if current is None or sys.version_info >= (3, 12):
            return self._run(work, copy_context())
        _leave(self._loop, current)
        try:
            return self._run(work, copy_context())
        finally:
            _enter(self._loop, current)

    if sys.version_info >= (3, 12):

        def _run(self, work: Work, context: Context) -> "asyncio.Task[Any] | None":
            started = asyncio.Task(work, loop=self._loop, context=context, eager_start=True)
            return None if started.done() else started

    else:

        def _run(self, work: Work, context: Context) -> "asyncio.Task[Any] | None":
            spare = self._spare or self._context.run(_SpareTask, self._loop)
            self._spare = None  # work that starts other work gets another
            task, outcome = spare.task, None
            _enter(self._loop, task)
            try:
                outcome = context.run(work.send, None)
            except StopIteration as end:
                if spare.is_unchanged(references=2):  # ours, and that of the current task
                    self._spare = spare
                    return None
                outcome = StopIteration(end.value)
            except BaseException as error:  # noqa: BLE001  # the task raises it
                outcome = error
            finally:
                _leave(self._loop, task)
            spare.go_on(work, context, outcome)
            outcome = None  # an error's traceback holds this frame: no circle, so that all goes at once
            return None if task.done() else task


class _SpareTask:
    """A task that waits for its work. Until then the loop does not list it, and nothing is lost if it is dropped."""

    __slots__ = ("_content", "_context", "_references", "_relay", "_step", "task")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.task: Any
        self._relay = _Relay()
        self.task, [(self._step, self._context)] = asyncio_tasks.create_unstarted(loop, self._relay)
        self.task._log_destroy_pending = False
        asyncio.tasks._unregister_task(self.task)
        self._references = sys.getrefcount(self.task)
        self._content = gc.get_referents(self.task)

    def is_unchanged(self, references: int) -> bool:
        """Return whether the task is as it was made, without a cancellation, callback, name or attribute of its work,
        and all that refers to it are so many new references."""
        task = self.task
        return (
            _count_references(task) == self._references + references + 1
            and not (task._must_cancel or _count_weak_references(task))
            and gc.get_referents(task) == self._content
        )

    def go_on(self, work: Work, context: Context, outcome: Any) -> None:
        """Let the task continue `work` in its `context` after its first step, or end as the work did."""
        self._relay.work, self._relay.context, self._relay.first = work, context, (outcome,)
        del outcome  # see the end of `run`
        self.task._log_destroy_pending = True
        asyncio.tasks._register_task(self.task)
        self._context.run(self._step)


class _Relay(Coroutine[Any, Any, Any]):
    """The coroutine of a spare task: `work` in its `context`. `first`: the outcome of the first step, until the task
    has it."""

    __slots__ = ("context", "first", "work")

    def __init__(self) -> None:
        self.work: Work
        self.context: Context
        self.first: tuple[Any] | None = None

    def send(self, value: Any) -> Any:
        if self.first is None:
            return self.context.run(self.work.send, value)
        (outcome,), self.first = self.first, None
        if isinstance(outcome, BaseException):
            try:
                raise outcome
            finally:
                del outcome  # see the end of `run`
        return outcome

    def throw(self, *error: Any) -> Any:
        if self.first is None:
            return self.context.run(self.work.throw, *error)
        outcome = self.send(None)  # the work cancelled its own task in the first step
        if outcome is not None:
            outcome.cancel()
        return outcome

    def close(self) -> None:
        self.work.close()

    def __await__(self) -> Generator[Any, Any, Any]:
        raise NotImplementedError

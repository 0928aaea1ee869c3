"""Speak to the client of a call, directly or through its task. Source: extension io.modelcontextprotocol/tasks."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import Any

from toolgate.server.base.asyncio_tasks import DeadlineTimer
from toolgate.server.calls.client import CallClient
from toolgate.server.calls.pending_questions import LIFETIME, PendingQuestions
from toolgate.server.calls.tasks import CallTask, CallTasks
from toolgate.server.protocol.session import Call
from toolgate.server.state.keys.sealed_state import Sealer
from toolgate.tools.api.content import Continuation
from toolgate.tools.api.context.services import Settings
from toolgate.tools.api.errors import ToolError

log = logging.getLogger("toolgate.deferrals")


class TaskClient(CallClient):
    """The client of such a call.

    - `timer` limits the work until the call becomes a task; `by_itself`: it does when it takes long.
    - `wakes`: the client goes on during a task, and wakes its model when the task ends.
    - `encode_call(state)` returns how to run it again, or None if that could do harm. `state`: of what it left running,
      which is then only followed. `stop(state)` ends that.
    """

    def __init__(
        self,
        call: Call,
        seal: Sealer,
        questions: PendingQuestions,
        settings: Settings,
        streaming: bool,
        *,
        timer: DeadlineTimer,
        tasks: CallTasks,
        by_itself: bool,
        wakes: bool,
        encode_call: Callable[[str | None], bytes | None],
        stop: Callable[[str], Awaitable[object]],
    ) -> None:
        super().__init__(call, seal, questions, settings.hold, streaming)
        self.call_task: CallTask | None = None
        self.became_task: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.work: asyncio.Task[Any] | None = None
        self.timer = timer
        self._tasks = tasks
        self._by_itself = by_itself
        self._wakes = wakes
        self._tool: str = call.params["name"]
        self._encode_call = encode_call
        self._stop = stop
        self._when_changed: list[Callable[[], None]] = []
        self._lock = asyncio.Lock()  # the tool and the timer may create the task at the same time

    @property
    def is_held(self) -> bool:  # type: ignore[override]  # constant for other calls
        return self.call_task is None and not self._by_itself

    @property
    def wants_progress(self) -> bool:
        return self.call_task is not None or super().wants_progress

    def start_heartbeat(self, first: float, seconds: float) -> None:
        if self.call_task is None:  # a client that polls a task needs no heartbeat
            super().start_heartbeat(first, seconds)

    def progress(self, progress: float, total: float | None, message: str | None) -> None:
        if self.call_task is None:
            super().progress(progress, total, message)
        else:
            self.call_task.progress(message)

    def log(self, level: str, data: Any, logger: str | None) -> None:
        if self.call_task is None:
            super().log(level, data, logger)

    def close_stream(self) -> None:
        if self.call_task is None:
            super().close_stream()

    async def _from_client(self, requests: Mapping[str, dict[str, Any]], timeout: float | None) -> dict[str, Any]:
        if self.call_task is None:
            return await super()._from_client(requests, timeout)
        return await self.call_task.ask(requests, timeout)

    async def _page_timeout(self, timeout: float | None) -> float:
        """Return the wait for a question on the page: it goes on if the page is closed."""
        return await super()._page_timeout(timeout) if self.call_task is None else timeout or LIFETIME

    async def as_task(self, required: bool) -> bool:
        async with self._lock:
            if self.call_task is None:
                self.become_task(await self._begin())
        return True

    async def follow_as_task(self, continuation: Continuation) -> bool:
        if not self._wakes:
            return False
        async with self._lock:
            if self.call_task is not None:
                return False
            try:
                task = await self._begin(continuation)
            except ToolError as error:  # the client gets the ordinary answer
                log.warning("a call of %s does not become a task: %s", self._tool, error.text)
                return False
            task.stop = partial(self._stop, continuation.state)
            self.become_task(task)
        return True

    async def _begin(self, continuation: Continuation | None = None) -> CallTask:
        """Create a task for this call. Raises ToolError."""
        session = self._call.session
        again = self._encode_call(None if continuation is None else continuation.state)
        return await self._tasks.begin(session.principal, self._tool, again, session.right, continuation)

    def when_changed(self, tell: Callable[[], None]) -> None:
        self._when_changed.append(tell)

    def become_task(self, task: CallTask) -> None:
        """Continue the call as this task."""
        assert self.work is not None
        self.stop()
        self.timer.release(self.work)
        self._tasks.deadlines.watch(self.work)
        task.attach_work(self.work)
        self._call.is_task = True
        self.call_task = task
        self.became_task.set_result(None)
        self._notify_change()

    def _notify_change(self) -> None:
        for tell in self._when_changed:
            tell()

    async def wait_for_outcome(self, patience: float | None) -> None:
        """Wait until the work is done or the call has become a task, at the latest after `patience` seconds."""
        assert self.work is not None
        either = (self.work, self.became_task)
        await asyncio.wait(either, timeout=patience, return_when=asyncio.FIRST_COMPLETED)
        if not self.work.done() and not self.became_task.done():
            await self._become_task_by_itself()
            await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)

    async def _become_task_by_itself(self) -> None:
        assert self.work is not None
        async with self._lock:
            if self.call_task is not None:
                return
            try:
                task = await self._begin()
            except ToolError as error:  # it goes on as an ordinary call
                log.warning("a call of %s does not become a task: %s", self._tool, error.text)
                self._by_itself = False
                self._notify_change()
                return
            if self.work.done():
                await self._tasks.forget(task)
            else:
                self.become_task(task)

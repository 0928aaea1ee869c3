"""The client's end of one call that may become a task: at first like any other's, afterwards through the task.

Knows nothing of what the call does. Source: extension io.modelcontextprotocol/tasks.
"""

import asyncio
import logging
from collections.abc import Callable, Mapping
from typing import Any

from toolgate.server.calls.client import Caller
from toolgate.server.calls.pending_questions import LIFETIME, Questions
from toolgate.server.calls.tasks import Deferral, Deferrals
from toolgate.server.protocol.deadlines import Hold
from toolgate.server.protocol.session import Call
from toolgate.server.state.sealed_state import Seal
from toolgate.tools.api.context import Settings
from toolgate.tools.api.errors import ToolError

log = logging.getLogger("toolgate.deferrals")


class Deferrable(Caller):
    """`hold` has taken the task that does the work, and lets it go when the call becomes a task. `by_itself`: the call
    becomes one when it takes long. `again()` says how to run it again, where that does no harm."""

    def __init__(
        self,
        call: Call,
        seal: Seal,
        questions: Questions,
        settings: Settings,
        streaming: bool,
        *,
        hold: Hold,
        deferrals: Deferrals,
        by_itself: bool,
        again: Callable[[], bytes | None],
    ) -> None:
        super().__init__(call, seal, questions, settings.hold, streaming)
        self.deferral: Deferral | None = None
        self.handed_over: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.work: asyncio.Task[Any] | None = None
        self._until_then = hold
        self._deferrals = deferrals
        self._by_itself = by_itself
        self._tool: str = call.params["name"]
        self._again = again
        self._when_changed: list[Callable[[], None]] = []
        self._lock = asyncio.Lock()  # the tool and the clock may want it at the same time

    @property
    def held(self) -> bool:  # type: ignore[override]  # of any other call it never changes
        return self.deferral is None and not self._by_itself

    @property
    def wants_progress(self) -> bool:
        return self.deferral is not None or super().wants_progress

    def start_heartbeat(self, first: float, seconds: float) -> None:
        if self.deferral is None:  # a task that is polled need not say that it lives
            super().start_heartbeat(first, seconds)

    def progress(self, progress: float, total: float | None, message: str | None) -> None:
        if self.deferral is None:
            super().progress(progress, total, message)
        else:
            self.deferral.progress(message)

    def log(self, level: str, data: Any, logger: str | None) -> None:
        if self.deferral is None:
            super().log(level, data, logger)

    def close_stream(self) -> None:
        if self.deferral is None:
            super().close_stream()

    async def _from_client(self, requests: Mapping[str, dict[str, Any]], timeout: float | None) -> dict[str, Any]:
        if self.deferral is None:
            return await super()._from_client(requests, timeout)
        return await self.deferral.ask(requests, timeout)

    def _wait(self, timeout: float | None) -> float:
        """A task holds up nobody: its questions are waited for as long as they stay, whoever looks."""
        return super()._wait(timeout) if self.deferral is None else timeout or LIFETIME

    async def as_task(self, required: bool) -> bool:
        async with self._lock:
            if self.deferral is None:
                self.become(await self._begin())
        return True

    async def _begin(self) -> Deferral:
        """A task for this call. Raises ToolError."""
        session = self._call.session
        return await self._deferrals.begin(session.principal, self._tool, self._again(), session.right)

    def when_changed(self, tell: Callable[[], None]) -> None:
        self._when_changed.append(tell)

    def become(self, deferral: Deferral) -> None:
        """From now on the call is this task."""
        assert self.work is not None
        self.stop()
        self._until_then.release(self.work)
        self._deferrals.longest.take(self.work)
        deferral.begun(self.work)
        self._call.deferred = True
        self.deferral = deferral
        self.handed_over.set_result(None)
        self._changed()

    def _changed(self) -> None:
        for tell in self._when_changed:
            tell()

    async def turn_out(self, patience: float | None) -> None:
        """Wait until the work is done or the call a task, which it becomes after `patience` seconds."""
        assert self.work is not None
        either = (self.work, self.handed_over)
        await asyncio.wait(either, timeout=patience, return_when=asyncio.FIRST_COMPLETED)
        if not self.work.done() and not self.handed_over.done():
            await self._lose_patience()
            await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)

    async def _lose_patience(self) -> None:
        assert self.work is not None
        async with self._lock:
            if self.deferral is not None:
                return
            try:
                deferral = await self._begin()
            except ToolError as error:  # it is held like any other call
                log.warning("a call of %s does not become a task: %s", self._call.params.get("name"), error.text)
                self._by_itself = False
                self._changed()
                return
            if self.work.done():
                await self._deferrals.forget(deferral)
            else:
                self.become(deferral)

"""Notify observers of the start and end of each tools/call, and log their exceptions: no answer is lost."""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Protocol

import msgspec

from toolgate.server.base.task import StoredTask
from toolgate.server.protocol.errors import InternalError, RpcError
from toolgate.server.protocol.messages import Request
from toolgate.server.protocol.session import Call

log = logging.getLogger("toolgate.observers")

GRANTED = frozenset(
    ("allowed", "approved", "approved_session", "approved_always")
)  # decisions after which the tool runs
ENDS = {"completed": "ok", "failed": "fault", "cancelled": "cancelled"}  # a task's status → how its call ended

UNOBSERVED = "a call could not be observed"

CallFunction = Callable[[Call], Awaitable[dict[str, Any]]]


class CallEnd(msgspec.Struct, frozen=True):
    """How a call ended. `outcome` is ok, error (the tool failed), refused, cancelled, fault, asked (the person must
    answer first, and the client calls again), or task: it goes on as the one named `task`, and ends again later."""

    outcome: str
    task: str | None
    seconds: float


class Observer(Protocol):
    @property
    def prepare(self) -> Callable[[Call], Awaitable[None] | None] | None:
        """Returns what a call must wait for before it begins, or None. None: no call waits."""
        ...

    @property
    def call_started(self) -> Callable[[Call], Any] | None:
        """The function that returns a value that `call_ended` gets as `begun`; None: nothing is done at the start."""
        ...

    def call_ended(self, call: Call, begun: Any, end: CallEnd) -> None:
        """Note that the call was answered. `call.output` is the tool's output, if it ran."""
        ...

    def task_lost(self, kept: StoredTask) -> None:
        """Note that a task ended because its process died."""
        ...

    def scope_missing(self, principal: str, client: str, request: Request) -> None:
        """Note that a tools/call was refused before it started, because its caller lacks the scope."""
        ...


class Observers:
    """Notify several observers in order."""

    def __init__(self, observers: Sequence[Observer] = ()) -> None:
        self._observers = tuple(observers)
        self._starts = tuple(observer.call_started for observer in observers)
        self._ends = tuple(observer.call_ended for observer in observers)
        self._prepares = tuple(observer.prepare for observer in observers if observer.prepare is not None)

    def wrap(self, answer: CallFunction) -> CallFunction:
        """Return `answer` with every observer notified of each call."""
        if not self._observers:
            return answer

        async def observing(call: Call) -> dict[str, Any]:
            for prepare in self._prepares:
                preparing = prepare(call)
                if preparing is not None:
                    await preparing
            self._begin(call)
            try:
                result = await answer(call)
            except BaseException as error:
                self._end(call, _of_error(error), None)
                raise
            self._end(call, *_of_result(call, result))
            return result

        return observing

    def task_ended(self, call: Call, kept: StoredTask) -> None:
        """Note that the task of `call` has ended, or is left to the next process."""
        if kept.is_live or not self._observers:
            return
        if call.observed is None:  # begun by another process
            self._begin(call)
        outcome = ENDS[kept.status]
        self._end(call, _of_output(call) if outcome == "ok" else outcome, kept.id, time.time() - kept.created)

    def task_lost(self, kept: StoredTask) -> None:
        for observer in self._observers:
            _notify(observer.task_lost, kept)

    def scope_missing(self, principal: str, client: str, request: Request) -> None:
        if request.method == "tools/call":
            for observer in self._observers:
                _notify(observer.scope_missing, principal, client, request)

    def _begin(self, call: Call) -> None:
        starts: list[Any] = []
        for start in self._starts:
            try:
                starts.append(None if start is None else start(call))
            except Exception:
                log.exception(UNOBSERVED)
                starts.append(None)
        call.observed = time.monotonic(), starts

    def _end(self, call: Call, outcome: str, task: str | None, lasted: float | None = None) -> None:
        if outcome == "error" and call.is_waiting:
            outcome = "asked"
        elif outcome == "error" and call.decision not in GRANTED:
            outcome = "refused"
        assert call.observed is not None  # `_begin` was called
        began, starts = call.observed
        end = CallEnd(outcome, task, time.monotonic() - began if lasted is None else lasted)
        for ended, begun in zip(self._ends, starts):  # noqa: B905  # `_begin` made one for each
            try:
                ended(call, begun, end)
            except Exception:
                log.exception(UNOBSERVED)


def _notify(tell: Callable[..., Any], *what: Any) -> None:
    try:
        tell(*what)
    except Exception:
        log.exception(UNOBSERVED)


def _of_error(error: BaseException) -> str:
    if isinstance(error, asyncio.CancelledError):
        return "cancelled"
    return "refused" if isinstance(error, RpcError) and not isinstance(error, InternalError) else "fault"


def _of_result(call: Call, result: dict[str, Any]) -> tuple[str, str | None]:
    """Return the outcome, and the task that the call became."""
    kind = result.get("resultType")
    if kind == "task":
        return "task", result["taskId"]
    return "asked" if kind == "input_required" else _of_output(call), None


def _of_output(call: Call) -> str:
    return "error" if call.output is not None and call.output.is_error else "ok"

"""Run the function behind one request: a tool, a prompt, a resource, a completion.

Each gets a Context for the client, a time limit, a heartbeat and questions to the person. A call that may become a task
runs in its own asyncio task, which continues after the request is answered (extension io.modelcontextprotocol/tasks).
"""

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

import msgspec

from toolgate.server.base import asyncio_tasks
from toolgate.server.base.asyncio_tasks import DeadlineTimer
from toolgate.server.calls.client import CallClient, InputRequired, NoClient
from toolgate.server.calls.task_client import TaskClient
from toolgate.server.calls.tasks import LONGEST, MAX_OUTCOME, CallTask
from toolgate.server.methods.server import Server
from toolgate.server.protocol import serialization
from toolgate.server.protocol.dispatcher import log_fault
from toolgate.server.protocol.errors import InternalError, InvalidParams, MissingClientCapability, RpcError
from toolgate.server.protocol.messages import Outbound, encode_value
from toolgate.server.protocol.request_meta import TASKS
from toolgate.server.protocol.revisions import STATELESS
from toolgate.server.protocol.session import Call, Session
from toolgate.server.state.rows.tasks import REPEATABLE
from toolgate.tools.api.context.context import Context
from toolgate.tools.api.errors import (
    CannotAskError,
    StillWaitingError,
    ToolError,
    UnansweredError,
    WrongArgumentsError,
    drop_tracebacks,
)
from toolgate.tools.api.tool import Tool

HEARTBEAT = 10.0  # seconds between heartbeats to a client that sent a progress token
FIRST_BEAT = 1.0  # seconds: over HTTP the answer becomes a stream then, and the client needs an event to resume from


class TimeLimitError(Exception):
    """The work reached its time limit and was stopped."""


Work = Callable[[Context], Awaitable[dict[str, Any]]]
Outcome = dict[str, Any] | BaseException


async def execute(
    server: Server, call: Call, work: Work, caller: CallClient | None = None, timer: DeadlineTimer | None = None
) -> dict[str, Any]:
    """Return the result of `work(context)`, or the one that asks the client for input first (2026-07-28).

    `timer` limits the work; None: the limit of any call. Raises TimeLimitError, MissingClientCapability (2026-07-28),
    and whatever the work raises.
    """
    timer = timer or server.deadlines
    task = asyncio.current_task() if caller is not None or call.flight is None else call.flight.task
    assert task is not None
    caller = caller or CallClient(call, server.seal, server.questions, server.settings.hold, server.streaming)
    if server.note_use is not None:
        server.note_use(call.session.principal)
    if server.prepare is not None:
        await server.prepare(call.session.principal)
    if caller.wants_progress:
        caller.start_heartbeat(FIRST_BEAT, HEARTBEAT)
    timer.watch(task)
    services = server.services.of_session(call.session)
    try:
        result = await work(Context(services, caller))
    except asyncio.CancelledError:
        if not timer.release(task):
            raise
        raise TimeLimitError from None
    except InputRequired as questions:
        drop_tracebacks(questions)
        return caller.input_required(questions)
    except BaseExceptionGroup as group:  # asked inside a task group
        asked = group.subgroup(InputRequired)
        if asked is not None:
            drop_tracebacks(group)
            return caller.input_required(InputRequired(_all_questions(asked)))
        waiting = group.subgroup(StillWaitingError)
        if waiting is None:
            raise
        caller.leave_waiting()
        drop_tracebacks(group)
        raise _first_waiting(waiting) from None
    except CannotAskError as refusal:
        if isinstance(refusal, StillWaitingError):
            caller.leave_waiting()
        if not call.revision.stateless or isinstance(refusal, UnansweredError):
            raise  # the client can answer: there is no capability to demand
        raise MissingClientCapability(refusal.text, {"requiredCapabilities": refusal.required}) from None
    finally:
        timer.release(task)
        caller.end()
    place = services.caller_state
    if place.save is not None and not place.is_saved:  # before the answer: the client relies on it
        await place.save_cwd()
    return result


async def execute_or_refuse(
    server: Server, call: Call, work: Work, what: str, data: Any = None, timer: DeadlineTimer | None = None
) -> dict[str, Any]:
    """Like `execute`, for work whose result can't carry a refusal: it becomes an error of the request, with `data`."""
    try:
        return await execute(server, call, work, timer=timer)
    except WrongArgumentsError as error:
        raise InvalidParams(error.text, data) from None
    except ToolError as error:
        raise InternalError(error.text, data) from None
    except TimeLimitError:
        raise InternalError(f"{what} took too long and was stopped", data) from None


def _first_waiting(group: BaseExceptionGroup[StillWaitingError]) -> StillWaitingError:
    first = group.exceptions[0]
    return _first_waiting(first) if isinstance(first, BaseExceptionGroup) else first


def _all_questions(group: BaseExceptionGroup[InputRequired]) -> dict[str, dict[str, Any]]:
    questions: dict[str, dict[str, Any]] = {}
    for part in group.exceptions:
        questions |= _all_questions(part) if isinstance(part, BaseExceptionGroup) else part.requests
    return questions


class StoredCall(msgspec.Struct, frozen=True):
    """A call stored so that it can run again."""

    name: str
    arguments: Any
    revision: str
    capabilities: dict[str, Any]
    grant: str = ""  # our grant that the call used
    follows: str | None = None  # the state of what the call left running: it is followed, and not begun again


class _SilentChannel:
    """Drop messages: the request of this call belonged to another process."""

    can_ask = False
    is_full = False

    def send(self, message: Outbound) -> None: ...

    def pause(self) -> None: ...


def can_become_task(call: Call, tool: Tool) -> bool:
    """Return whether a call can become a task: the client knows tasks, and the tool allows or can request it."""
    return (tool.as_task or tool.function.context is not None) and TASKS in call.session.extensions


async def execute_or_defer(server: Server, call: Call, tool: Tool, work: Work) -> dict[str, Any]:
    """Return the result of `execute`, or the result that says that the call has become a task."""
    caller = _task_client(server, server.deadlines, call, tool, by_itself=tool.as_task)
    task = asyncio_tasks.start(asyncio.get_running_loop(), _run_work(server, call, work, caller))
    caller.work = task
    try:
        if not task.done():
            await caller.wait_for_outcome(server.task_after if tool.as_task else None)
    except BaseException:  # mostly a cancellation: the request ended
        if caller.call_task is not None:
            await server.call_tasks.forget(caller.call_task)
        task.cancel()
        await asyncio.wait([task])
        _free_outcome(task)
        raise
    if caller.call_task is not None:
        return {"resultType": "task", **serialization.format_task(caller.call_task.first_row)}
    outcome: Outcome = task.result()
    try:
        if isinstance(outcome, BaseException):
            raise outcome
        return outcome
    finally:
        del outcome  # its traceback holds this frame


def _free_outcome(task: "asyncio.Task[Outcome]") -> None:
    """Free the frames of work whose outcome nothing will read."""
    outcome = None if task.cancelled() else task.result()
    if isinstance(outcome, BaseException):
        drop_tracebacks(outcome)


def rerun(server: Server, task: CallTask, how: bytes, prepare: Callable[[Call, str | None], tuple[Tool, Work]]) -> None:
    """Continue a task that a dead process left. `prepare(call, follows)` may raise RpcError."""
    stored = msgspec.json.decode(how.removeprefix(REPEATABLE), type=StoredCall)
    task.right = stored.grant or None
    revision = STATELESS.get(stored.revision) or next(reversed(STATELESS.values()))
    session = Session(task.kept.principal, stateless=True, right=task.right)
    session = session.for_request(revision, stored.capabilities, None)
    params = {"name": stored.name, "arguments": stored.arguments}
    call = Call(task.kept.id, "tools/call", params, session, _SilentChannel())

    async def work() -> None:
        try:
            tool, prepared = prepare(call, stored.follows)
        except RpcError as error:
            await _end_task(server, call, task, error)
            return
        caller = _task_client(server, server.call_tasks.deadlines, call, tool, by_itself=False)
        caller.work = asyncio.current_task()
        caller.become_task(task)
        if stored.follows is not None:
            task.stop = partial(_stop, server, call, tool, stored.follows)
        await _run_work(server, call, prepared, caller)

    task.attach_work(asyncio.get_running_loop().create_task(work()))


def _task_client(server: Server, timer: DeadlineTimer, call: Call, tool: Tool, *, by_itself: bool) -> TaskClient:
    return TaskClient(
        call,
        server.seal,
        server.questions,
        server.settings,
        server.streaming,
        timer=timer,
        tasks=server.call_tasks,
        by_itself=by_itself,
        wakes=server.is_woken(call.session.client),
        encode_call=partial(_encode_call, call, tool),
        stop=partial(_stop, server, call, tool),
    )


async def _stop(server: Server, call: Call, tool: Tool, state: str) -> None:
    """End what a call of the tool left running."""
    if tool.stops is not None:
        await tool.stops(state, Context(server.services.of_session(call.session), NoClient()))


def _encode_call(call: Call, tool: Tool, follows: str | None) -> bytes | None:
    """Return how to run this call again, or None where that could do harm, or would repeat an answered question. With
    `follows`, what it left running is followed."""
    hints, params, session = tool.annotations, call.params, call.session
    is_harmless = hints.read_only and hints.idempotent
    if follows is None and (not is_harmless or "inputResponses" in params or "requestState" in params):
        return None
    arguments = params.get("arguments") if follows is None else {}
    grant = session.right if isinstance(session.right, str) else ""
    stored = StoredCall(tool.name, arguments, call.revision.name, session.capabilities, grant, follows)
    return encode_value(stored) if follows is None else REPEATABLE + encode_value(stored)


async def _run_work(server: Server, call: Call, work: Work, caller: TaskClient) -> Outcome:
    """Return the outcome of the work, even an exception: raised, it could end the loop."""
    outcome: Outcome
    caller.work = asyncio.current_task()
    try:
        outcome = await execute(server, call, work, caller, caller.timer)
    except GeneratorExit:
        raise
    except BaseException as error:  # noqa: BLE001  # a plugin's, whatever it raised
        outcome = error
    try:
        if caller.call_task is not None:
            await _end_task(server, call, caller.call_task, outcome)
        return outcome
    finally:
        del outcome  # the traceback of an error holds this frame


async def _end_task(server: Server, call: Call, task: CallTask, outcome: Outcome) -> None:
    """End the task with the outcome of its work."""
    work = task.work
    assert work is not None
    if server.call_tasks.deadlines.release(work):
        outcome = TimeLimitError()
    # a task that is not live was cancelled; at shutdown it stays as it is for the next process
    if task.kept.is_live and not (server.call_tasks.is_closing and work.cancelling()):
        found = _encode_outcome(call, outcome)
        if isinstance(found, bytes):
            await task.end("completed", None, found)
        else:
            error = {"code": found.code, "message": found.message}
            error |= {} if found.data is None else {"data": found.data}
            await task.end("failed", found.message, encode_value(error))
    server.observers.task_ended(call, task.kept)


def _encode_outcome(call: Call, outcome: Outcome) -> bytes | RpcError:
    """Return the result in its stored form, or the error to store."""
    what = f"{call.method}, a task"
    if isinstance(outcome, BaseException):
        return _to_stored_error(what, outcome)
    try:
        result = encode_value({"resultType": "complete", **outcome})
    except Exception as error:  # noqa: BLE001  # a result that JSON can't hold
        return log_fault(what, error)
    if len(result) > MAX_OUTCOME:
        return InternalError(f"the result has {len(result)} bytes, and at most {MAX_OUTCOME} are kept")
    return result


def _to_stored_error(what: str, error: BaseException) -> RpcError:
    """Return the error to store. One that is unknown, as a plugin's, is logged."""
    if not isinstance(error, (RpcError, TimeLimitError)):
        return log_fault(what, error)
    drop_tracebacks(error)
    if isinstance(error, RpcError):
        return error
    return InternalError(f"it took more than {LONGEST / 3600:g} hours and was stopped")

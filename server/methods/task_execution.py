"""Run calls that may become tasks: each in a task of its own, which goes on after the request is answered.

Source: extension io.modelcontextprotocol/tasks.
"""

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Any

import msgspec

from toolgate.server.calls.task_client import TaskClient
from toolgate.server.calls.tasks import LONGEST, MAX_OUTCOME, CallTask
from toolgate.server.methods.execution import TimeLimitError, Work, execute
from toolgate.server.protocol import eager_task, serialization
from toolgate.server.protocol.deadlines import DeadlineTimer
from toolgate.server.protocol.dispatcher import log_fault
from toolgate.server.protocol.errors import InternalError, RpcError
from toolgate.server.protocol.messages import Outbound, encode_value
from toolgate.server.protocol.request_meta import TASKS
from toolgate.server.protocol.revisions import STATELESS
from toolgate.server.protocol.session import Call, Session
from toolgate.server.server import Server
from toolgate.tools.api.tool import Tool

Outcome = dict[str, Any] | BaseException


class StoredCall(msgspec.Struct, frozen=True):
    """What it takes to make a call once more."""

    name: str
    arguments: Any
    revision: str
    capabilities: dict[str, Any]
    grant: str = ""  # of ours that the call came by


class _SilentChannel:
    """The channel of a call whose request was another process's."""

    can_ask = False

    def send(self, message: Outbound) -> None: ...

    def pause(self) -> None: ...


def can_become_task(call: Call, tool: Tool) -> bool:
    """Whether a call can become a task: the client knows them, and the tool says so or is able to ask for it."""
    return call.session.has_extension(TASKS) and (tool.as_task or tool.function.context is not None)


async def execute_or_defer(server: Server, hold: DeadlineTimer, call: Call, tool: Tool, work: Work) -> dict[str, Any]:
    """`attend`, or the result that says that the call has become a task."""
    caller = _task_client(server, hold, call, partial(_encode_call, call, tool), by_itself=tool.as_task)
    task = eager_task.start(asyncio.get_running_loop(), _run_work(server, hold, call, work, caller))
    caller.work = task
    try:
        if not task.done():
            await caller.wait_for_outcome(server.task_after if tool.as_task else None)
    except BaseException:  # above all a cancellation: nobody waits for the answer any more
        await _cancel_work(server, task, caller)
        raise
    if caller.call_task is not None:
        return {"resultType": "task", **serialization.format_task(caller.call_task.first_row)}
    outcome: Outcome = task.result()
    if isinstance(outcome, BaseException):
        raise outcome
    return outcome


def rerun(server: Server, deferral: CallTask, how: bytes, prepare: Callable[[Call], Work]) -> None:
    """Start the work on a task that a dead process left. `prepare` may raise RpcError."""
    again = msgspec.json.decode(how, type=StoredCall)
    deferral.right = again.grant or None
    revision = STATELESS.get(again.revision) or next(reversed(STATELESS.values()))
    session = Session(deferral.kept.principal, stateless=True, right=deferral.right).for_request(
        revision, again.capabilities, None
    )
    call = Call(
        deferral.kept.id, "tools/call", {"name": again.name, "arguments": again.arguments}, session, _SilentChannel()
    )
    hold = server.call_tasks.deadlines
    caller = _task_client(server, hold, call, lambda: None, by_itself=False)

    async def work() -> None:
        caller.work = asyncio.current_task()
        caller.become_task(deferral)
        try:
            prepared = prepare(call)
        except RpcError as error:
            await _end_task(server, call, deferral, error)
        else:
            await _run_work(server, hold, call, prepared, caller)

    deferral.attach_work(asyncio.get_running_loop().create_task(work()))


def _task_client(
    server: Server, hold: DeadlineTimer, call: Call, again: Callable[[], bytes | None], *, by_itself: bool
) -> TaskClient:
    return TaskClient(
        call,
        server.seal,
        server.questions,
        server.settings,
        server.streaming,
        hold=hold,
        deferrals=server.call_tasks,
        by_itself=by_itself,
        encode_call=again,
    )


def _encode_call(call: Call, tool: Tool) -> bytes | None:
    """How to make this call once more; None where that could do harm, or would ask somebody what he has answered."""
    hints, params = tool.annotations, call.params
    if not (hints.read_only and hints.idempotent) or "inputResponses" in params or "requestState" in params:
        return None
    session = call.session
    grant = session.right if isinstance(session.right, str) else ""
    return encode_value(StoredCall(tool.name, params.get("arguments"), call.revision.name, session.capabilities, grant))


async def _run_work(server: Server, hold: DeadlineTimer, call: Call, work: Work, caller: TaskClient) -> Outcome:
    """The work and what came of it: given, not raised, since it may be what would end the loop."""
    outcome: Outcome
    caller.work = asyncio.current_task()
    try:
        outcome = await execute(server, hold, call, work, caller)
    except GeneratorExit:
        raise
    except BaseException as error:  # noqa: BLE001  # a plugin's, whatever it raised
        outcome = error
    if caller.call_task is not None:
        await _end_task(server, call, caller.call_task, outcome)
    return outcome


async def _end_task(server: Server, call: Call, deferral: CallTask, outcome: Outcome) -> None:
    """Turn what came of the work into the end of the deferral, and record that."""
    await _record_outcome(server, call, deferral, outcome)
    server.observers.task_ended(call, deferral.kept)


async def _record_outcome(server: Server, call: Call, deferral: CallTask, outcome: Outcome) -> None:
    work = deferral.work
    assert work is not None
    if server.call_tasks.deadlines.release(work):
        outcome = TimeLimitError()
    if not deferral.kept.is_live or (server.call_tasks.is_closing and work.cancelling()):
        return  # it was cancelled; or the server ends, and the next process finds it as it is
    found = _encode_outcome(call, outcome)
    if isinstance(found, bytes):
        await deferral.end("completed", None, found)
    else:
        told = {"code": found.code, "message": found.message}
        told |= {} if found.data is None else {"data": found.data}
        await deferral.end("failed", found.message, encode_value(told))


def _encode_outcome(call: Call, outcome: Outcome) -> bytes | RpcError:
    """The result as it is kept, or the error that is."""
    try:
        match outcome:
            case dict():
                result = encode_value({"resultType": "complete", **outcome})
            case BaseException():
                raise outcome
    except RpcError as refusal:
        return refusal
    except TimeLimitError:
        return InternalError(f"it took more than {LONGEST / 3600:g} hours and was stopped")
    except BaseException as error:  # noqa: BLE001  # a plugin's, whatever it raised; or a result JSON can't hold
        return log_fault(f"{call.method}, a task", error)
    if len(result) > MAX_OUTCOME:
        return InternalError(f"the result has {len(result)} bytes, and at most {MAX_OUTCOME} are kept")
    return result


async def _cancel_work(server: Server, task: "asyncio.Task[Outcome]", caller: TaskClient) -> None:
    if caller.call_task is not None:
        await server.call_tasks.forget(caller.call_task)
    task.cancel()
    await asyncio.wait([task])

"""Calls that may become tasks: each does its work in a task of its own, which goes on when the request is answered.

Knows nothing of what the work is. Source: extension io.modelcontextprotocol/tasks.
"""

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Any

import msgspec

from toolgate.server.calls.task_client import Deferrable
from toolgate.server.calls.tasks import LONGEST, MAX_OUTCOME, Deferral
from toolgate.server.methods.execution import TookTooLong, Work, attend
from toolgate.server.protocol import eager_task, serialization
from toolgate.server.protocol.deadlines import Hold
from toolgate.server.protocol.dispatcher import fault
from toolgate.server.protocol.errors import InternalError, RpcError
from toolgate.server.protocol.messages import Outbound, spelled
from toolgate.server.protocol.request_meta import TASKS
from toolgate.server.protocol.revisions import STATELESS
from toolgate.server.protocol.session import Call, Session
from toolgate.server.server import Server
from toolgate.tools.api.tool import Tool

Outcome = dict[str, Any] | BaseException


class Again(msgspec.Struct, frozen=True):
    """What it takes to make a call once more."""

    name: str
    arguments: Any
    revision: str
    capabilities: dict[str, Any]
    grant: str = ""  # of ours that the call came by


class _Silence:
    """The channel of a call whose request was another process's."""

    can_ask = False

    def send(self, message: Outbound) -> None: ...

    def pause(self) -> None: ...


def may_defer(call: Call, tool: Tool) -> bool:
    """Whether a call can become a task: the client knows them, and the tool says so or is able to ask for it."""
    return call.session.declares(TASKS) and (tool.as_task or tool.function.context is not None)


async def attend_or_defer(server: Server, hold: Hold, call: Call, tool: Tool, work: Work) -> dict[str, Any]:
    """`attend`, or the result that says that the call has become a task."""
    caller = _deferrable(server, hold, call, partial(_again, call, tool), by_itself=tool.as_task)
    task = eager_task.start(asyncio.get_running_loop(), _do(server, hold, call, work, caller))
    caller.work = task
    try:
        if not task.done():
            await caller.turn_out(server.patience if tool.as_task else None)
    except BaseException:  # above all a cancellation: nobody waits for the answer any more
        await _call_off(server, task, caller)
        raise
    if caller.deferral is not None:
        return {"resultType": "task", **serialization.task(caller.deferral.created)}
    outcome: Outcome = task.result()
    if isinstance(outcome, BaseException):
        raise outcome
    return outcome


def do_again(server: Server, deferral: Deferral, how: bytes, prepare: Callable[[Call], Work]) -> None:
    """Start the work on a deferral that a dead process left. `prepare` may raise RpcError."""
    again = msgspec.json.decode(how, type=Again)
    deferral.right = again.grant or None
    revision = STATELESS.get(again.revision) or next(reversed(STATELESS.values()))
    session = Session(deferral.kept.principal, stateless=True, right=deferral.right).of_request(
        revision, again.capabilities, None
    )
    call = Call(deferral.kept.id, "tools/call", {"name": again.name, "arguments": again.arguments}, session, _Silence())
    hold = server.deferrals.longest
    caller = _deferrable(server, hold, call, lambda: None, by_itself=False)

    async def work() -> None:
        caller.work = asyncio.current_task()
        caller.become(deferral)
        try:
            prepared = prepare(call)
        except RpcError as error:
            await _end(server, call, deferral, error)
        else:
            await _do(server, hold, call, prepared, caller)

    deferral.begun(asyncio.get_running_loop().create_task(work()))


def _deferrable(
    server: Server, hold: Hold, call: Call, again: Callable[[], bytes | None], *, by_itself: bool
) -> Deferrable:
    return Deferrable(
        call,
        server.seal,
        server.questions,
        server.settings,
        server.streaming,
        hold=hold,
        deferrals=server.deferrals,
        by_itself=by_itself,
        again=again,
    )


def _again(call: Call, tool: Tool) -> bytes | None:
    """How to make this call once more; None where that could do harm, or would ask somebody what he has answered."""
    hints, params = tool.annotations, call.params
    if not (hints.read_only and hints.idempotent) or "inputResponses" in params or "requestState" in params:
        return None
    session = call.session
    grant = session.right if isinstance(session.right, str) else ""
    return spelled(Again(tool.name, params.get("arguments"), call.revision.name, session.capabilities, grant))


async def _do(server: Server, hold: Hold, call: Call, work: Work, caller: Deferrable) -> Outcome:
    """The work and what came of it: given, not raised, since it may be what would end the loop."""
    outcome: Outcome
    caller.work = asyncio.current_task()
    try:
        outcome = await attend(server, hold, call, work, caller)
    except GeneratorExit:
        raise
    except BaseException as error:  # noqa: BLE001  # a plugin's, whatever it raised
        outcome = error
    if caller.deferral is not None:
        await _end(server, call, caller.deferral, outcome)
    return outcome


async def _end(server: Server, call: Call, deferral: Deferral, outcome: Outcome) -> None:
    """Turn what came of the work into the end of the deferral, and record that."""
    await _conclude(server, call, deferral, outcome)
    server.observers.task_ended(call, deferral.kept)


async def _conclude(server: Server, call: Call, deferral: Deferral, outcome: Outcome) -> None:
    work = deferral.work
    assert work is not None
    if server.deferrals.longest.release(work):
        outcome = TookTooLong()
    if not deferral.kept.live or (server.deferrals.ending and work.cancelling()):
        return  # it was cancelled; or the server ends, and the next process finds it as it is
    found = _found(call, outcome)
    if isinstance(found, bytes):
        await deferral.end("completed", None, found)
    else:
        told = {"code": found.code, "message": found.message}
        told |= {} if found.data is None else {"data": found.data}
        await deferral.end("failed", found.message, spelled(told))


def _found(call: Call, outcome: Outcome) -> bytes | RpcError:
    """The result as it is kept, or the error that is."""
    try:
        match outcome:
            case dict():
                result = spelled({"resultType": "complete", **outcome})
            case BaseException():
                raise outcome
    except RpcError as refusal:
        return refusal
    except TookTooLong:
        return InternalError(f"it took more than {LONGEST / 3600:g} hours and was stopped")
    except BaseException as error:  # noqa: BLE001  # a plugin's, whatever it raised; or a result JSON can't hold
        return fault(f"{call.method}, a task", error)
    if len(result) > MAX_OUTCOME:
        return InternalError(f"the result has {len(result)} bytes, and at most {MAX_OUTCOME} are kept")
    return result


async def _call_off(server: Server, task: "asyncio.Task[Outcome]", caller: Deferrable) -> None:
    if caller.deferral is not None:
        await server.deferrals.forget(caller.deferral)
    task.cancel()
    await asyncio.wait([task])

"""tasks/get, tasks/update and tasks/cancel: what a client may do with a call that has become a task.

Knows nothing of what the call does. Source: extension io.modelcontextprotocol/tasks.
"""

from collections.abc import Awaitable, Callable, Iterable
from typing import Any

from toolgate.server.calls.client import SHAPES
from toolgate.server.calls.tasks import Deferral, Kept
from toolgate.server.protocol import serialization
from toolgate.server.protocol.errors import InternalError, InvalidParams, MissingClientCapability
from toolgate.server.protocol.request_meta import TASKS
from toolgate.server.protocol.session import Call
from toolgate.server.server import Server
from toolgate.tools.api.errors import ToolError

MAX_TASK_ID = 256  # characters: the name of a tool and some more

Answer = Callable[[Call], Awaitable[dict[str, Any]]]


def get_task(server: Server) -> Answer:
    async def answer(call: Call) -> dict[str, Any]:
        require(call)
        return serialization.detailed_task(await _find(server, call))

    return answer


def update_task(server: Server) -> Answer:
    async def answer(call: Call) -> dict[str, Any]:
        """Bring answers; those to nothing that is asked are ignored."""
        require(call)
        answers = call.params.get("inputResponses")
        if not isinstance(answers, dict):
            raise InvalidParams("'inputResponses' must be an object")
        deferral = await _here(server, call)
        if deferral is not None:
            _check(deferral, answers)
            deferral.answer(answers)
        return {}

    return answer


def cancel_task(server: Server) -> Answer:
    async def answer(call: Call) -> dict[str, Any]:
        """Call the work off; nothing happens to what is over."""
        require(call)
        deferral = await _here(server, call)
        if deferral is not None:
            await server.deferrals.cancel(deferral)
        return {}

    return answer


def require(call: Call) -> None:
    """Raise MissingClientCapability unless the client knows tasks."""
    if not call.session.declares(TASKS):
        required: dict[str, Any] = {"requiredCapabilities": {"extensions": {TASKS: {}}}}
        raise MissingClientCapability(f"the client did not declare {TASKS}", required)


async def known(server: Server, principal: str, ids: Iterable[str]) -> dict[str, Kept]:
    """The principal's tasks of these ids whose changes this process hears of."""
    found = await _found(server, principal, ids)
    return {id: kept for id, kept in found.items() if not kept.live or server.deferrals.here(principal, id) is not None}


async def _found(server: Server, principal: str, ids: Iterable[str]) -> dict[str, Kept]:
    try:
        return await server.deferrals.find(principal, ids)
    except ToolError as error:  # of the state database: busy, full, …
        raise InternalError(error.text) from None


async def _find(server: Server, call: Call) -> Kept:
    id = call.params.get("taskId")
    if not isinstance(id, str) or len(id) > MAX_TASK_ID:
        raise InvalidParams(f"'taskId' must be a string of at most {MAX_TASK_ID} characters")
    found = await _found(server, call.session.principal, [id])
    if id not in found:
        raise InvalidParams(f"unknown task: {id[:120]!r}; it may have expired")
    return found[id]


async def _here(server: Server, call: Call) -> Deferral | None:
    """The task that is under way here; None when it is over."""
    kept = await _find(server, call)
    deferral = server.deferrals.here(call.session.principal, kept.id)
    if deferral is None and kept.live:
        raise InternalError("another server process on the same state works on this task: only that one can be told")
    return deferral


def _check(deferral: Deferral, answers: dict[str, Any]) -> None:
    """Raise InvalidParams when an answer is none to what is asked: nothing of the update is taken then."""
    for key, request in deferral.outstanding.items():
        if key in answers:
            answer = answers[key]
            if not isinstance(answer, dict) or not SHAPES[request["method"]](answer):
                raise InvalidParams(f"the answer to {key[:80]!r} has no shape known for {request['method']}"[:200])

"""Answer tasks/get, tasks/update and tasks/cancel. Source: extension io.modelcontextprotocol/tasks."""

from collections.abc import Iterable
from typing import Any

from toolgate.server.base.task import StoredTask
from toolgate.server.calls.task_requests import TaskRequest, carry_out
from toolgate.server.methods.server import Server
from toolgate.server.protocol import serialization
from toolgate.server.protocol.errors import InternalError, InvalidParams, MissingClientCapability
from toolgate.server.protocol.request_meta import TASKS
from toolgate.server.protocol.session import Call
from toolgate.tools.api.errors import ToolError

AWAY = "the server process that works on this task can't be reached, and this was not done: try again in some seconds"
MAX_TASK_ID = 256  # characters: it contains the name of a tool
TRIES = 2  # the second after the owner has ended: then the task has another one, or has ended too


async def get_task(server: Server, call: Call) -> dict[str, Any]:
    require_extension(call)
    return serialization.format_detailed_task(await _find_task(server, call))


async def update_task(server: Server, call: Call) -> dict[str, Any]:
    """Take answers; those to no open question are ignored."""
    require_extension(call)
    answers = call.params.get("inputResponses")
    if not isinstance(answers, dict):
        raise InvalidParams("'inputResponses' must be an object")
    await _reach(server, call, answers)
    return {}


async def cancel_task(server: Server, call: Call) -> dict[str, Any]:
    """Cancel the work; nothing happens if it has ended."""
    require_extension(call)
    await _reach(server, call, None)
    return {}


def require_extension(call: Call) -> None:
    """Raise MissingClientCapability unless the client declares tasks."""
    if TASKS not in call.session.extensions:
        required: dict[str, Any] = {"requiredCapabilities": {"extensions": {TASKS: {}}}}
        raise MissingClientCapability(f"the client did not declare {TASKS}", required)


async def find_notified(server: Server, principal: str, ids: Iterable[str]) -> dict[str, StoredTask]:
    """Return the principal's tasks with these ids whose changes this process sees."""
    found = await _find_rows(server, principal, ids)
    if server.remote_tasks is not None:
        return found
    running = server.call_tasks.find_running
    return {id: task for id, task in found.items() if not task.is_live or running(principal, id) is not None}


async def _find_rows(server: Server, principal: str, ids: Iterable[str]) -> dict[str, StoredTask]:
    try:
        return await server.call_tasks.find(principal, ids)
    except ToolError as error:  # from the state database: busy, full, …
        raise InternalError(error.text) from None


async def _find_task(server: Server, call: Call) -> StoredTask:
    id = call.params.get("taskId")
    if not isinstance(id, str) or len(id) > MAX_TASK_ID:
        raise InvalidParams(f"'taskId' must be a string of at most {MAX_TASK_ID} characters")
    found = await _find_rows(server, call.session.principal, [id])
    if id not in found:
        raise InvalidParams(f"unknown task: {id[:120]!r}; it may have expired")
    return found[id]


async def _reach(server: Server, call: Call, answers: dict[str, Any] | None) -> None:
    """Give the answers to the task, or with None cancel it, wherever it runs. Raises RpcError."""
    principal = call.session.principal
    for _ in range(TRIES):
        kept = await _find_task(server, call)
        if not kept.is_live:
            return
        request = TaskRequest(principal, kept.id, answers)
        task = server.call_tasks.find_running(principal, kept.id)
        if task is not None:
            await carry_out(server.call_tasks, task, request)
            return
        if server.remote_tasks is None:
            raise InternalError(
                "another server process on the same state works on this task: only that one can be told"
            )
        if await server.remote_tasks.send(kept.process, request):
            return
    raise InternalError(AWAY)

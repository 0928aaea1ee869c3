"""Answer tasks/get, tasks/update and tasks/cancel. Source: extension io.modelcontextprotocol/tasks."""

from collections.abc import Iterable
from typing import Any

from toolgate.server.calls.client import SHAPES
from toolgate.server.calls.tasks import CallTask
from toolgate.server.protocol import serialization
from toolgate.server.protocol.errors import InternalError, InvalidParams, MissingClientCapability
from toolgate.server.protocol.request_meta import TASKS
from toolgate.server.protocol.session import Call
from toolgate.server.protocol.task import StoredTask
from toolgate.server.server import Server
from toolgate.tools.api.errors import ToolError

MAX_TASK_ID = 256  # characters: it contains the name of a tool


async def get_task(server: Server, call: Call) -> dict[str, Any]:
    require_extension(call)
    return serialization.format_detailed_task(await _find_task(server, call))


async def update_task(server: Server, call: Call) -> dict[str, Any]:
    """Take answers; those to no open question are ignored."""
    require_extension(call)
    answers = call.params.get("inputResponses")
    if not isinstance(answers, dict):
        raise InvalidParams("'inputResponses' must be an object")
    task = await _find_running(server, call)
    if task is not None:
        _check_answers(task, answers)
        task.answer(answers)
    return {}


async def cancel_task(server: Server, call: Call) -> dict[str, Any]:
    """Cancel the work; nothing happens if it has ended."""
    require_extension(call)
    task = await _find_running(server, call)
    if task is not None:
        await server.call_tasks.cancel(task)
    return {}


def require_extension(call: Call) -> None:
    """Raise MissingClientCapability unless the client declares tasks."""
    if not call.session.has_extension(TASKS):
        required: dict[str, Any] = {"requiredCapabilities": {"extensions": {TASKS: {}}}}
        raise MissingClientCapability(f"the client did not declare {TASKS}", required)


async def find_notified(server: Server, principal: str, ids: Iterable[str]) -> dict[str, StoredTask]:
    """Return the principal's tasks with these ids whose changes this process sees."""
    found = await _find_rows(server, principal, ids)
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


async def _find_running(server: Server, call: Call) -> CallTask | None:
    """Return the task if it runs here, or None if it has ended."""
    kept = await _find_task(server, call)
    task = server.call_tasks.find_running(call.session.principal, kept.id)
    if task is None and kept.is_live:
        raise InternalError("another server process on the same state works on this task: only that one can be told")
    return task


def _check_answers(task: CallTask, answers: dict[str, Any]) -> None:
    """Raise InvalidParams if one answer has the wrong shape; then none is taken."""
    for key, request in task.outstanding.items():
        if key in answers:
            answer = answers[key]
            if not isinstance(answer, dict) or not SHAPES[request["method"]](answer):
                raise InvalidParams(f"the answer to {key[:80]!r} has no shape known for {request['method']}"[:200])

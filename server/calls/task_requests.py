"""Carry out what a client wants of a running task: take its answers, or cancel the work."""

from typing import Any

import msgspec

from toolgate.server.calls.client_questions import SHAPES
from toolgate.server.calls.tasks import CallTask, CallTasks
from toolgate.server.protocol.errors import InvalidParams


class TaskRequest(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a client wants of a task. `answers` is None to cancel it."""

    principal: str
    id: str
    answers: dict[str, Any] | None = None


async def carry_out(tasks: CallTasks, task: CallTask, request: TaskRequest) -> None:
    """Answer or cancel a task that runs here. Raises InvalidParams if one answer has the wrong shape: none is taken."""
    if request.answers is None:
        await tasks.stop(task)
        return
    for key, asked in task.outstanding.items():
        answer = request.answers.get(key)
        if key in request.answers and not (isinstance(answer, dict) and SHAPES[asked["method"]](answer)):
            raise InvalidParams(f"the answer to {key[:80]!r} has no shape known for {asked['method']}"[:200])
    await task.answer(request.answers)

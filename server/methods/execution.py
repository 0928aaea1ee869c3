"""Run the function behind one request: a tool, a prompt, a resource, a completion.

All of them get a Context to speak to the client through, a time limit, a heartbeat and questions to the person.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from toolgate.server.calls.client import CallClient, InputRequired
from toolgate.server.protocol.deadlines import DeadlineTimer
from toolgate.server.protocol.errors import InternalError, InvalidParams, MissingClientCapability
from toolgate.server.protocol.session import Call
from toolgate.server.server import Server
from toolgate.tools.api.context import Context
from toolgate.tools.api.errors import CannotAskError, StillWaitingError, ToolError, UnansweredError, WrongArgumentsError

HEARTBEAT = 10.0  # seconds between signs of life to a client that sent a progress token
FIRST_BEAT = 1.0  # seconds: over HTTP the answer is a stream from then on, and its client needs an event to resume from


class TimeLimitError(Exception):
    """The work was held as long as any is, and stopped."""


Work = Callable[[Context], Awaitable[dict[str, Any]]]


async def execute(
    server: Server, hold: DeadlineTimer, call: Call, work: Work, caller: CallClient | None = None
) -> dict[str, Any]:
    """The result of `work(context)`, or the one that asks the client for input first (2026-07-28).

    Raises TookTooLong, MissingClientCapability (2026-07-28), and whatever the work raises.
    """
    caller = caller or CallClient(call, server.seal, server.questions, server.settings.hold, server.streaming)
    task = asyncio.current_task()
    assert task is not None
    if server.note_use is not None:
        server.note_use(call.session.principal)
    hold.watch(task)
    if caller.wants_progress:
        caller.start_heartbeat(FIRST_BEAT, HEARTBEAT)
    try:
        return await work(Context(server.services.of_session(call.session), caller))
    except asyncio.CancelledError:
        if not hold.release(task):
            raise
        raise TimeLimitError from None
    except InputRequired as questions:
        return caller.input_required(questions)
    except BaseExceptionGroup as group:  # a question asked inside a task group
        asked = group.subgroup(InputRequired)
        if asked is not None:
            return caller.input_required(InputRequired(_all_questions(asked)))
        waiting = group.subgroup(StillWaitingError)
        if waiting is None:
            raise
        caller.leave_waiting()
        raise _first_waiting(waiting) from None
    except CannotAskError as refusal:
        if isinstance(refusal, StillWaitingError):
            caller.leave_waiting()
        if not call.revision.stateless or isinstance(refusal, UnansweredError):
            raise  # who could be asked has nothing to declare
        raise MissingClientCapability(refusal.text, {"requiredCapabilities": refusal.required}) from None
    finally:
        hold.release(task)
        caller.stop()
        caller.release()


async def execute_or_refuse(
    server: Server, hold: DeadlineTimer, call: Call, work: Work, what: str, data: Any = None
) -> dict[str, Any]:
    """`attend`, for work whose result has no place for a refusal: it is an error of the request, with `data`."""
    try:
        return await execute(server, hold, call, work)
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

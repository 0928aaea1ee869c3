"""Start requests to a mounted server: a plain one, or a call that its tool takes as a task only.

A server of 2025-11-25 may have tools that run as tasks and not otherwise (`execution.taskSupport` is "required"). Few
clients can do that, so such a call is made a task there and waited for here: for the client it is a call like others,
which this server makes a task of its own where the client has tasks.
"""

import asyncio
import contextlib
from typing import Any

import msgspec
from msgspec.structs import replace

from toolgate.server.features.mounts.upstream.errors import MountError, UpstreamFault, UpstreamRefusal
from toolgate.server.features.mounts.upstream.peer import PROGRESS, Flight, MountNotice, Question
from toolgate.server.features.mounts.upstream.session import ForwardedParams, UpstreamSession
from toolgate.tools.api.context.context import Context

TASK_TIMEOUT = 86_400.0  # seconds for a task; what limits the call limits it before
CREATED_WITHIN = 30.0  # seconds for a task to be made
RELATED = "io.modelcontextprotocol/related-task"  # in `_meta`: the client has no such task

Result = dict[str, Any]


class ForwardedRequest:
    """One request that is under way, and its question that is not answered yet. `turn` is closed at its end. `timeout`:
    seconds without a sign of life; None: as the mount has it."""

    timeout: float | None = None

    def __init__(self, session: UpstreamSession, flight: Flight, principal: str) -> None:
        self.session = session
        self.flight = flight
        self.principal = principal
        self.turn = contextlib.ExitStack()
        self.question: Question | None = None
        self.asked = 0  # questions so far
        self.ending: asyncio.TimerHandle | None = None

    @property
    def has_begun(self) -> bool:
        """Whether the call runs, whatever becomes of this request."""
        return self.asked > 0

    def cancel(self, reason: str) -> None:
        self.session.peer.cancel(self.flight, reason)


class ForwardedTask(ForwardedRequest):
    """One call that runs as a task; the request is the one for its result."""

    timeout = TASK_TIMEOUT

    def __init__(self, session: UpstreamSession, flight: Flight, principal: str, id: str) -> None:
        super().__init__(session, flight, principal)
        self._id = id

    @property
    def has_begun(self) -> bool:
        return True

    def cancel(self, reason: str) -> None:
        super().cancel(reason)
        self.session.run_soon(_cancel_task(self.session, self._id))


async def recall(context: Context, key: str) -> Any:
    """Return what `context.once` has stored under the key in an earlier try of the call, or None."""

    async def find_nothing() -> None:
        raise LookupError

    try:
        return await context.once(key, find_nothing)
    except LookupError:
        return None


def name_question(number: int) -> str:
    """Return the name under which a client is asked what a server with sessions asks: that has none for it."""
    return f"mounted-question-{number}"


async def pass_on(notice: MountNotice, context: Context) -> None:
    """Tell a client of progress, or a line of the mounted server's log."""
    params = notice.params
    if notice.method == PROGRESS:
        progress, total, message = params.get("progress"), params.get("total"), params.get("message")
        if isinstance(progress, (int, float)):
            known = total if isinstance(total, (int, float)) else None
            with contextlib.suppress(OverflowError, ValueError):  # a number that is none
                await context.progress(progress, known, message if isinstance(message, str) else None)
        return
    with contextlib.suppress(ValueError):  # a level that is none
        logger = params.get("logger")
        await context.log(str(params.get("level")), params.get("data"), logger if isinstance(logger, str) else None)


async def start_request(session: UpstreamSession, sent: ForwardedParams, context: Context) -> ForwardedRequest:
    """Raises MountError."""
    flight = Flight(session.can_ask)
    await session.forward(sent, flight, with_progress=context.wants_progress)
    return ForwardedRequest(session, flight, context.principal)


async def start_task(session: UpstreamSession, sent: ForwardedParams, context: Context) -> ForwardedRequest:
    """Have a call run as a task, and ask for its result. Raises MountError, UpstreamRefusedError."""
    creation, flight = Flight(), Flight(session.can_ask)  # what is asked meanwhile is for the second
    wanted = replace(sent, params={**sent.params, "task": {"ttl": int(TASK_TIMEOUT * 1_000)}})
    await session.forward(wanted, creation, with_progress=context.wants_progress)
    session.peer.set_successor(creation, flight)
    id = ""
    try:
        id = await _wait_id(creation)
        await session.start("tasks/result", {"taskId": id}, flight)
    except BaseException:
        session.peer.set_successor(creation, None)
        session.run_soon(_cancel_task(session, id) if id else _cancel_created(session, creation))
        raise
    return ForwardedTask(session, flight, context.principal, id)


async def _cancel_created(session: UpstreamSession, creation: Flight) -> None:
    """End the task that a request may still make: a cancelled request makes it all the same."""
    try:
        if not creation.is_over or not creation.events.empty():
            await _cancel_task(session, await _wait_id(creation))
    finally:
        session.peer.cancel(creation, "no longer needed")


async def _cancel_task(session: UpstreamSession, id: str) -> None:
    await session.request("tasks/cancel", {"taskId": id})


async def _wait_id(flight: Flight) -> str:
    """Return the id of the task that a request makes. Raises MountError, UpstreamRefusedError."""
    try:
        async with asyncio.timeout(CREATED_WITHIN):
            event = await flight.events.get()
            while isinstance(event, (MountNotice, Question)):
                event = await flight.events.get()
    except TimeoutError:
        raise MountError("CALL_TIMEOUT", f"no task within {CREATED_WITHIN:g} s") from None
    if isinstance(event, (UpstreamFault, UpstreamRefusal)):
        raise event.create_error()
    assert isinstance(event, dict)  # the request takes no others
    return _read_id(event)


def _read_id(result: Result) -> str:
    task = result.get("task")
    task = msgspec.json.decode(task) if isinstance(task, msgspec.Raw) else task
    id = task.get("taskId") if isinstance(task, dict) else None
    if not isinstance(id, str):
        raise MountError("BAD_MESSAGE", "its tool runs as a task only, and its answer names none")
    return id

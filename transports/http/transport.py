"""Define the parts of every HTTP transport: its endpoints, its services, and its running messages.

The limits per principal keep principals from crowding each other out. The hard limits are the container's memory and
the process's descriptors.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping
from functools import partial
from types import CoroutineType
from typing import Any, Protocol

import msgspec

from toolgate.server.base import asyncio_tasks
from toolgate.server.base.bus.bus import BusUnreachableError
from toolgate.server.base.limits.budget import Budget, Claim
from toolgate.server.base.principals.principal import GrantKey, Principal
from toolgate.server.config.transports import HttpTransport
from toolgate.server.protocol.dispatcher import Dispatcher
from toolgate.server.protocol.messages import Inbound
from toolgate.server.protocol.session import Channel, Session
from toolgate.transports.http.requests import body as bodies
from toolgate.transports.http.requests.bearer import ScopeCheck, SignedInHandler
from toolgate.transports.http.requests.post import Post, PostReply
from toolgate.transports.http.sessions import event_stream as events
from toolgate.transports.http.sessions.event_stream import EventStream
from toolgate.transports.http.sessions.sessions import Sessions
from toolgate.transports.http.wire.request import Answer, HttpRequest, WholeResponse, refuse

ENDING = "the server is shutting down"
MAX_REQUESTS = 3_072  # of known principals at once: other connections stay free for strangers and pages
MAX_EACH_REQUESTS = 1_024  # of one principal; one more is refused
MAX_STREAMS = 2_048  # open at once: two thirds of the requests, so that calls find room beside them
MAX_EACH_STREAMS = 512  # of one principal; beyond it the oldest is disconnected

# What clients mirror into headers: header name after `mcp-param-`, in lower case → value, None if there is none
Mirrored = Mapping[str, Any]
PostTaker = Callable[[str, Principal, bytes, bytes | None], Awaitable[int]]


class HttpBudgets(msgspec.Struct, frozen=True):
    """`requests` and `streams` are counts; `bodies`, `answers` and `events` are bytes. `answers` wait in connections,
    `events` in streams."""

    requests: Budget
    streams: Budget
    bodies: Budget
    answers: Budget
    events: Budget

    def by_name(self) -> dict[str, Budget]:
        return msgspec.structs.asdict(self)


def create_budgets(answers: Budget, *, is_single_principal: bool = False) -> HttpBudgets:
    """Return the server's budgets. `is_single_principal`: one principal's programs share all requests and streams."""
    return HttpBudgets(
        Budget(MAX_REQUESTS, MAX_REQUESTS if is_single_principal else MAX_EACH_REQUESTS),
        Budget(MAX_STREAMS, MAX_STREAMS if is_single_principal else MAX_EACH_STREAMS, renews=True),
        Budget(bodies.MAX_ALL_BODIES, bodies.MAX_BODIES),
        answers,
        Budget(events.MAX_ALL, events.MAX_PER_PRINCIPAL, renews=True),
    )


def _mirrors_nothing(_tool: str, _arguments: Any) -> Mirrored:
    return {}


class PostForwarder(Protocol):
    """Takes POSTs to the replica that has their session."""

    async def forward(self, session: str, principal: Principal, body: bytes, answer: bytes | None) -> int:
        """Return the HTTP status that the replica in the session's id gives. Raises BusUnreachableError."""
        ...

    def receive(self, take: PostTaker) -> None:
        """Take the POSTs that other replicas forward: `take(session, principal, body, answer)`."""
        ...


class TransportServices(msgspec.Struct, frozen=True):
    """The parts that a transport gets from the server.

    - `sessions`: those of this transport.
    - `budgets`: limits of all transports together.
    - `scope_check`: None if every caller has every scope.
    - `mirrored_headers(tool, arguments)`: the arguments of a call that headers repeat.
    - `prefix`: the path before the server's own in its public URL, or "".
    - `forwarder`: the way to sessions of other replicas, or None.
    - `now`: the clock by which tokens end, in seconds since the epoch.
    """

    row: HttpTransport
    dispatcher: Dispatcher
    sessions: Sessions
    budgets: HttpBudgets
    scope_check: ScopeCheck | None = None
    mirrored_headers: Callable[[str, Any], Mirrored] = _mirrors_nothing
    prefix: str = ""
    forwarder: PostForwarder | None = None
    now: Callable[[], float] = time.time


class RunningMessages:
    """The messages in progress."""

    def __init__(self, dispatcher: Dispatcher) -> None:
        self.tasks: set[asyncio.Task[Any]] = set()
        self.is_ending = False  # no new request starts; answers and cancellations still arrive
        self._dispatcher = dispatcher

    def __len__(self) -> int:
        return len(self.tasks)

    def start(
        self,
        message: Inbound | list[Inbound],
        session: Session,
        channel: Channel,
        claim: Claim | None,
        tasks: "set[asyncio.Task[None]] | None" = None,
    ) -> "asyncio.Task[None] | None":
        """Start the work on a message, and return its task, or None if it is done. Until then it is in `tasks` and
        holds the `claim` of its body."""
        work = self._dispatcher.handle_message(message, session, channel)
        task = asyncio_tasks.start(asyncio.get_running_loop(), work)
        if task.done():
            if claim is not None:
                claim.release()
            return None
        if claim is not None:
            task.add_done_callback(lambda _: claim.release())
        for running in (self.tasks,) if tasks is None else (self.tasks, tasks):
            running.add(task)
            task.add_done_callback(running.discard)
        return task

    def start_reply(
        self, post: Post, session: Session, reply: PostReply, tasks: "set[asyncio.Task[None]] | None" = None
    ) -> "asyncio.Task[None] | None":
        """Start the work on a POST, and return its task, or None if it is done. Its reply ends with the work."""
        claim = None if post.claim is None else post.take_claim()
        task = self.start(post.message, session, reply, claim, tasks)
        if task is None:
            reply.finish()
        else:
            task.add_done_callback(lambda _: reply.finish())
        return task


class Endpoint:
    """Answers the requests to one path: one handler per method, within the limit on requests of a principal."""

    def __init__(self, budgets: HttpBudgets, handlers: Mapping[str, SignedInHandler]) -> None:
        self._requests = budgets.requests
        self._handlers = handlers

    def __call__(self, principal: Principal, request: HttpRequest) -> Answer:
        handle = self._handlers.get(request.head.method)
        if handle is None:
            *others, last = self._handlers
            methods = f"{', '.join(others)} or {last}" if others else last
            return refuse(405, f"the method must be {methods}", [(b"allow", ", ".join(self._handlers).encode())])
        holder = self._requests.enter(principal.name)
        if holder is None:
            return refuse_for_now("too many requests at once")
        request.on_end = partial(self._requests.leave, holder, 1)
        try:
            answer = handle(principal, request)
        except BusUnreachableError as error:
            return refuse_for_now(str(error))
        return _wait_or_refuse(answer) if isinstance(answer, CoroutineType) else answer


async def _wait_or_refuse(answer: Answer) -> Answer:
    """Return the answer when all waits for it are over: after the body there may be one for the bus."""
    try:
        while isinstance(answer, CoroutineType):
            answer = await answer
        return answer
    except BusUnreachableError as error:
        return refuse_for_now(str(error))


class Transport(Protocol):
    """An HTTP transport, as the application serves it."""

    running: RunningMessages
    sessions: Sessions

    @property
    def streams(self) -> Collection[EventStream]:
        """The streams that have a reader."""
        ...

    def endpoints(self) -> Mapping[str, SignedInHandler]:
        """Its handlers, by path."""
        ...

    def drain(self) -> None:
        """End the streams that wait for no answer: their clients can open them at another server."""
        ...

    def rights(self) -> Iterable[GrantKey]:
        """The grants that have open sessions, calls or streams."""
        ...

    def end_by_rights(self, rights: Collection[GrantKey]) -> None:
        """End what these grants opened."""
        ...


def refuse_for_now(text: str = ENDING) -> WholeResponse:
    """Answer 503: the client tries again in a second, on another connection."""
    return refuse(503, text, [(b"retry-after", b"1")], closes=True)

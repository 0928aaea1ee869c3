"""Hold what every HTTP transport is made of: the services it gets, and the messages it works on."""

import asyncio
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

from toolgate.server.budget import Claim
from toolgate.server.principal import GrantKey
from toolgate.server.protocol import asyncio_tasks
from toolgate.server.protocol.dispatcher import Dispatcher
from toolgate.server.protocol.messages import Inbound
from toolgate.server.protocol.session import Channel, Session
from toolgate.transports.http.asgi import Application, Send, refuse
from toolgate.transports.http.bearer import ScopeCheck
from toolgate.transports.http.budgets import HttpBudgets
from toolgate.transports.http.event_ids import RequestIds
from toolgate.transports.http.event_stream import EventStream
from toolgate.transports.http.mcp_headers import Mirrored
from toolgate.transports.http.post import Post
from toolgate.transports.http.post_reply import JsonReply, PostReply, interrupted_answer
from toolgate.transports.http.sessions import Sessions

ENDING = "the server is ending"


def _mirrors_nothing(_tool: str) -> Mirrored:
    return {}


@dataclass(frozen=True, slots=True)
class TransportServices:
    """What a transport gets.

    - `sessions`: its own.
    - `budgets`: what principals share on all transports.
    - `scope_check`: None where every caller may do everything.
    - `mirrored_headers(tool)`: the parameters of a tool that headers repeat.
    """

    dispatcher: Dispatcher
    sessions: Sessions
    budgets: HttpBudgets
    scope_check: ScopeCheck | None = None
    mirrored_headers: Callable[[str], Mirrored] = _mirrors_nothing


class RunningMessages:
    """The messages that are worked on."""

    def __init__(self, dispatcher: Dispatcher) -> None:
        self.tasks: set[asyncio.Task[Any]] = set()
        self.is_ending = False  # no request is begun any more; answers and cancellations still come through
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
    ) -> "asyncio.Task[None]":
        """Start the work on a message; add it to `tasks`, and hold the `claim` of its body, until it is done."""
        work = self._dispatcher.handle_message(message, session, channel)
        task = asyncio_tasks.start(asyncio.get_running_loop(), work)
        if claim is not None:
            task.add_done_callback(lambda _: claim.release())
        if not task.done():
            for running in (self.tasks,) if tasks is None else (self.tasks, tasks):
                running.add(task)
                task.add_done_callback(running.discard)
        return task

    def start_reply(
        self,
        post: Post,
        session: Session,
        reply: PostReply | JsonReply,
        tasks: "set[asyncio.Task[None]] | None" = None,
    ) -> "asyncio.Task[None]":
        """Start the work on a POST. Its reply ends with the work; where the server's end broke that off, it says so."""
        task = self.start(post.message, session, reply, post.take_claim(), tasks)
        if task.done():
            reply.finish()
        else:
            task.add_done_callback(partial(self._finish, reply, post.request_ids))
        return task

    def _finish(self, reply: PostReply | JsonReply, ids: RequestIds | None, task: "asyncio.Task[None]") -> None:
        if self.is_ending and task.cancelled() and ids is not None:
            reply.send(interrupted_answer(ids))
        reply.finish()


class Transport(Protocol):
    """An HTTP transport, as the application serves it."""

    running: RunningMessages
    sessions: Sessions

    @property
    def streams(self) -> Collection[EventStream]:
        """Those that are read now."""
        ...

    def endpoints(self) -> Mapping[str, Application]:
        """Its ASGI applications, by path; a scope has the caller as `toolgate.principal`."""
        ...

    def rights(self) -> Iterable[GrantKey]:
        """By which something is open."""
        ...

    def end_by_rights(self, rights: Collection[GrantKey]) -> None:
        """End what these rights opened."""
        ...


async def refuse_for_now(send: Send, text: str = ENDING) -> None:
    """Answer 503: the client tries again in a second, on another connection."""
    await refuse(send, 503, text, [(b"connection", b"close"), (b"retry-after", b"1")])

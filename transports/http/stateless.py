"""Answer the POSTs of a revision without sessions: each brings all that is known of its client.

Hanging up calls the work off.
Source: MCP 2026-07-28 basic/transports/streamable-http.
"""

import asyncio
from collections.abc import Collection, Iterator
from functools import partial
from typing import Any

from toolgate.server.auth.scopes import usable_scopes
from toolgate.server.principal import GrantKey, Principal
from toolgate.server.protocol import request_meta
from toolgate.server.protocol.errors import InvalidParams, RpcError
from toolgate.server.protocol.messages import Failure, Request
from toolgate.server.protocol.session import Session
from toolgate.transports.http import mcp_headers
from toolgate.transports.http.accept import ReplyForms
from toolgate.transports.http.event_stream import EventStream, PingTimer
from toolgate.transports.http.post import Post
from toolgate.transports.http.post_reply import JsonReply, PostReply, send_accepted, send_answer
from toolgate.transports.http.stream_response import send_stream
from toolgate.transports.http.transport import RunningMessages, TransportServices

STATUS = {  # of refusals; the rest is 200
    -32700: 400,
    -32600: 400,
    -32601: 404,
    -32020: 400,
    -32021: 400,
    -32022: 400,
}


class StatelessPosts:
    """The POSTs of that era. An answer that takes longer than `patience` seconds becomes a stream."""

    def __init__(
        self, services: TransportServices, running: RunningMessages, pings: PingTimer, patience: float
    ) -> None:
        self._services = services
        self._budgets = services.budgets
        self._running = running
        self._pings = pings
        self._patience = patience
        self._callers: dict[asyncio.Task[None], Principal] = {}  # by the work that is done for them

    def rights(self) -> Iterator[GrantKey]:
        """By which calls and subscriptions are open."""
        return (principal.grant_key for principal in self._callers.values())

    def end_by_rights(self, rights: Collection[GrantKey]) -> None:
        """End those by these rights."""
        for task, principal in list(self._callers.items()):
            if principal.grant_key in rights:
                task.cancel()

    async def serve(self, post: Post) -> None:
        """Answer one POST."""
        request = post.message
        if not isinstance(request, Request):
            fault = post.find_stateless_fault()
            if fault is None:
                await send_accepted(post.send)  # a notification: this revision defines none over HTTP
            else:
                await send_answer(post.send, fault, 400)
            return
        try:
            self._check_headers(post, request)
        except RpcError as error:
            await send_answer(post.send, Failure(request.id, error), 400)
            return
        if ReplyForms.STREAM in post.accepts:
            await self._serve_either(post)
        else:
            await self._serve_json(post)

    async def _serve_json(self, post: Post) -> None:
        reply = JsonReply(None)
        task = self._begin(post, reply)
        if not await reply.wait_ended(post.receive):
            task.cancel()
        elif reply.answer is None:
            await send_accepted(post.send, 204)
        else:
            await self._send_answer(post, reply.answer)

    async def _serve_either(self, post: Post) -> None:
        reply = PostReply(partial(self._create_stream, post.principal))
        task = self._begin(post, reply)
        await reply.wait_decided(self._patience)
        if reply.stream is None and (post.accepts is ReplyForms.EITHER or _status(reply.answer) != 200):
            await self._send_answer(post, reply.answer)
            return
        stream = reply.stream or reply.stream_answer()
        place = self._budgets.streams.take(post.principal.name, 1)
        has_room = partial(self._budgets.answers.has_room, post.principal.name)
        try:
            if not await send_stream(
                stream, 0, post.receive, post.send, self._pings, keep=False, poll=None, place=place, has_room=has_room
            ):
                task.cancel()
        finally:
            stream.close()
            if place is not None:
                place.release()

    def _begin(self, post: Post, reply: PostReply | JsonReply) -> "asyncio.Task[None]":
        principal = post.principal
        session = Session(
            principal.name,
            stateless=True,
            owner=principal.owner,
            right=principal.grant_key,
            scopes=usable_scopes(principal.scopes),
            granted=usable_scopes(principal.grant_scopes),
            until=principal.until,
            client=principal.client,
            transport="http",
        )
        task = self._running.start_reply(post, session, reply)
        if not task.done():
            self._callers[task] = principal
            task.add_done_callback(self._callers.pop)
        return task

    def _create_stream(self, principal: Principal) -> EventStream:
        """A stream of one request, which no client comes back to."""
        return EventStream("", numbered=False, claim=self._budgets.events.claim(principal.name))

    async def _send_answer(self, post: Post, answer: Any) -> None:
        has_room = partial(self._budgets.answers.has_room, post.principal.name)
        await send_answer(post.send, answer, _status(answer), (), has_room)

    def _check_headers(self, post: Post, request: Request) -> None:
        """Raise what is wrong with the request's metadata, in the order of the specification."""
        meta = request.params.get("_meta")
        if not isinstance(meta, dict):
            raise InvalidParams("'_meta' must be an object")
        request_meta.check_meta(meta)
        name = request.params.get("name")
        mirrored: mcp_headers.Mirrored = {}
        if request.method == "tools/call" and isinstance(name, str):
            mirrored = self._services.mirrored_headers(name)
        name_parameter = self._services.dispatcher.name_parameter(request.method)
        mcp_headers.check_headers(post.headers, request, name_parameter, mirrored)


def _status(answer: Any) -> int:
    return STATUS.get(answer.error.code, 200) if isinstance(answer, Failure) else 200

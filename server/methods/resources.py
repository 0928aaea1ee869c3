"""Answer resources/read, resources/subscribe and resources/unsubscribe."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import msgspec

from toolgate.server.methods import resource_rules
from toolgate.server.methods.execution import execute_or_refuse
from toolgate.server.protocol import serialization
from toolgate.server.protocol.deadlines import DeadlineTimer
from toolgate.server.protocol.errors import InvalidParams, InvalidRequest, ResourceNotFound, RpcError
from toolgate.server.protocol.messages import encode_value
from toolgate.server.protocol.resource_updates import MAX_SUBSCRIPTIONS, MAX_URIS
from toolgate.server.protocol.session import Call
from toolgate.server.server import Server
from toolgate.tools.api.content import Contents
from toolgate.tools.api.context import Context
from toolgate.tools.api.errors import NotFound
from toolgate.tools.api.uri_templates import MAX_URI

PIECE = 2**20  # characters of a text that are encoded at once


def read_resource(server: Server) -> Callable[[Call], Awaitable[dict[str, Any]]]:
    hold = DeadlineTimer(server.call_timeout)

    async def answer(call: Call) -> dict[str, Any]:
        uri = _uri(call)
        found = server.registry.resource(uri)
        if found is None:
            raise _not_found(call, uri)
        resource, variables = found
        server.policy.require_rate(call, resource.scope)
        await _admit(server, call, uri)

        async def work(context: Context) -> dict[str, Any]:
            try:
                contents = await resource.read(uri, variables, context)
            except NotFound:
                raise _not_found(call, uri) from None
            parts = [await _in_pieces(serialization.format_contents(part, call.revision)) for part in contents]
            return serialization.add_cache_hints({"contents": parts}, call.revision, 0)

        return await execute_or_refuse(server, hold, call, work, "reading", {"uri": uri})

    return answer


def subscribe(server: Server) -> Callable[[Call], Awaitable[dict[str, Any]]]:
    async def answer(call: Call) -> dict[str, Any]:
        session, uri = call.session, _uri(call)
        if server.registry.resource(uri) is None:
            raise _not_found(call, uri)
        await _admit(server, call, uri)
        wanted = server.registry.scopes_of(uri) if session.scopes is not None else frozenset[str]()
        _make_room(session.subscribed, uri)
        if not server.updates.subscribe(session, session.principal, uri):
            raise InvalidRequest("too many resources are watched: unsubscribe from some", {"uri": uri})
        session.subscribed[uri] = wanted
        await session.save()
        return {}

    return answer


def unsubscribe(server: Server) -> Callable[[Call], Awaitable[dict[str, Any]]]:
    async def answer(call: Call) -> dict[str, Any]:
        session, uri = call.session, _uri(call)
        session.subscribed.pop(uri, None)
        server.updates.unsubscribe(session, session.principal, uri)
        await session.save()
        return {}

    return answer


async def _in_pieces(contents: Contents) -> Contents | dict[str, Any]:
    """The contents, with a long text encoded already: others have a turn after each piece, which takes 7 ms."""
    text = contents.text or ""
    if len(text) <= PIECE:
        return contents
    pieces: list[bytes] = []
    for begin in range(0, len(text), PIECE):
        pieces.append(encode_value(text[begin : begin + PIECE])[1:-1])
        await asyncio.sleep(0)
    others: dict[str, Any] = msgspec.to_builtins(msgspec.structs.replace(contents, text=""))
    return {**others, "text": msgspec.Raw(b'"%s"' % b"".join(pieces))}


def _make_room(subscribed: Mapping[str, object], uri: str) -> None:
    """Raise InvalidRequest where a session has room for no more."""
    if uri in subscribed:
        return
    if len(subscribed) >= MAX_SUBSCRIPTIONS:
        raise InvalidRequest(f"more than {MAX_SUBSCRIPTIONS} subscriptions")
    if sum(map(len, subscribed)) + len(uri) > MAX_URIS:
        raise InvalidRequest(f"more than {MAX_URIS} characters in the URIs that this session is subscribed to")


async def _admit(server: Server, call: Call, uri: str) -> None:
    """Raise InvalidRequest for what a rule is against."""
    refusal = await resource_rules.find_refusal(server, call.session, uri)
    if refusal is not None:
        raise InvalidRequest(refusal, {"uri": uri})


def _uri(call: Call) -> str:
    uri = call.params.get("uri")
    if not isinstance(uri, str):
        raise InvalidParams("'uri' must be a string")
    if len(uri) > MAX_URI:
        raise InvalidParams(f"'uri' is longer than {MAX_URI} characters")
    return uri


def _not_found(call: Call, uri: str) -> RpcError:
    """-32002 in the sessions era, -32602 from 2026-07-28 on (server/resources, "Error Handling")."""
    kind = InvalidParams if call.revision.stateless else ResourceNotFound
    return kind("resource not found", {"uri": uri})

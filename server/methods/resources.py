"""Answer resources/read, resources/subscribe and resources/unsubscribe.

A resource obeys the rules for the tool that returns the same data (`Resource.tool`). It can't wait for an approval: if
the tool needs one, the resource is refused.
"""

import asyncio
from collections.abc import Mapping
from typing import Any

import msgspec

from toolgate.server.methods.execution import execute_or_refuse
from toolgate.server.methods.server import Server
from toolgate.server.protocol import serialization
from toolgate.server.protocol.errors import InvalidParams, InvalidRequest, ResourceNotFound, RpcError
from toolgate.server.protocol.messages import encode_value
from toolgate.server.protocol.resource_updates import MAX_SUBSCRIPTIONS, MAX_URIS
from toolgate.server.protocol.session import Call, Session
from toolgate.tools.api.content import Contents
from toolgate.tools.api.context.context import Context
from toolgate.tools.api.errors import NotFound
from toolgate.tools.api.text.uris import MAX_URI, canonicalise, parse_scheme

PIECE = 2**20  # characters of a text encoded at once


async def read_resource(server: Server, call: Call) -> dict[str, Any]:
    uri = read_uri(call)
    found = server.find_resource(call.session, uri)
    if found is None:
        raise _not_found(server, call, uri)
    resource, variables = found
    await server.policy.require_rate(call, resource.scope)
    await _admit(server, call, uri)

    async def work(context: Context) -> dict[str, Any]:
        if resource.relay is not None:
            result = {**await resource.relay.ask({"uri": uri}, context)}
            return result if "ttlMs" in result else serialization.add_cache_hints(result, call.revision, 0)
        try:
            contents = await resource.read(uri, variables, context)
        except NotFound:
            raise _not_found(server, call, uri) from None
        parts = [await _in_pieces(serialization.format_contents(part, call.revision)) for part in contents]
        return serialization.add_cache_hints({"contents": parts}, call.revision, 0)

    return await execute_or_refuse(server, call, work, "reading", {"uri": uri})


async def subscribe(server: Server, call: Call) -> dict[str, Any]:
    session, uri = call.session, read_uri(call)
    if server.find_resource(session, uri) is None:
        raise _not_found(server, call, uri)
    await _admit(server, call, uri)
    scopes = server.registry.scopes_of(uri) if session.scopes is not None else frozenset[str]()
    _make_room(session.subscribed, uri)
    if not server.updates.subscribe(session, session.principal, uri):
        raise InvalidRequest("too many resources are watched: unsubscribe from some", {"uri": uri})
    session.subscribed[uri] = scopes
    await session.save()
    return {}


async def unsubscribe(server: Server, call: Call) -> dict[str, Any]:
    session, canonical = call.session, canonicalise(read_uri(call))
    for uri in [uri for uri in session.subscribed if canonicalise(uri) == canonical]:
        del session.subscribed[uri]
        server.updates.unsubscribe(session, session.principal, uri)
    await session.save()
    return {}


async def find_refusal(server: Server, session: Session, uri: str) -> str | None:
    """Return why this caller may not read the resource, or None."""
    scheme = parse_scheme(uri)
    if not server.policy.rules.can_refuse or scheme not in server.registry.scheme_owners:
        return None
    return await _refuse(server, session, scheme)


async def hidden_schemes(server: Server, session: Session) -> frozenset[str]:
    """Return the schemes whose resources this caller may not see."""
    if not server.policy.rules.can_refuse:
        return frozenset()
    schemes = server.registry.scheme_owners
    return frozenset([scheme for scheme in schemes if await _refuse(server, session, scheme) is not None])


async def _refuse(server: Server, session: Session, scheme: str) -> str | None:
    tool = server.registry.tools.get(server.registry.scheme_owners[scheme].tool or "")
    if tool is None:
        return None
    verdict, rule = await server.policy.verdict(session, tool, {})
    if verdict == "allowed":
        return None
    if verdict == "denied":
        return f"this is refused here, as {tool.name} is, by the rule --deny {rule}"
    return f"this takes a person's approval here (--approve {rule}): call {tool.name}, which asks for it"


async def _in_pieces(contents: Contents) -> Contents | dict[str, Any]:
    """Return the contents with long texts already encoded in pieces of 7 ms; other tasks run between them."""
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
    """Raise InvalidRequest if the session has no room for another subscription."""
    if uri in subscribed:
        return
    if len(subscribed) >= MAX_SUBSCRIPTIONS:
        raise InvalidRequest(f"more than {MAX_SUBSCRIPTIONS} subscriptions")
    if sum(map(len, subscribed)) + len(uri) > MAX_URIS:
        raise InvalidRequest(f"more than {MAX_URIS} characters in the URIs that this session is subscribed to")


async def _admit(server: Server, call: Call, uri: str) -> None:
    """Raise InvalidRequest if a rule refuses the resource."""
    refusal = await find_refusal(server, call.session, uri)
    if refusal is not None:
        raise InvalidRequest(refusal, {"uri": uri})


def read_uri(call: Call) -> str:
    """Return the parameter `uri`. Raises InvalidParams."""
    uri = call.params.get("uri")
    if not isinstance(uri, str):
        raise InvalidParams("'uri' must be a string")
    if len(uri) > MAX_URI:
        raise InvalidParams(f"'uri' is longer than {MAX_URI} characters")
    return uri


def _not_found(server: Server, call: Call, uri: str) -> RpcError:
    """Return -32002 in the sessions era, -32602 from 2026-07-28 on (server/resources, "Error Handling")."""
    kind = InvalidParams if call.revision.stateless else ResourceNotFound
    withheld = server.find_withheld(call.session, "resources", uri)
    if withheld is not None:
        return kind(withheld.error.text, {"uri": uri})
    others = [] if server.views is None else server.views.list_served_uris(uri)
    hint = f": several servers have it, as {' and '.join(others)}" if others else ""
    return kind(f"resource not found{hint}", {"uri": uri})

"""Begin a conversation in both eras, and cancel a request of it."""

import logging
from collections.abc import Awaitable, Callable, Iterable
from typing import Any

from toolgate.server.methods import resource_rules
from toolgate.server.methods.instructions import instructions
from toolgate.server.protocol import serialization
from toolgate.server.protocol.errors import InvalidParams, InvalidRequest
from toolgate.server.protocol.request_meta import TASKS
from toolgate.server.protocol.resource_updates import yield_in_turns
from toolgate.server.protocol.revisions import SUPPORTED, Revision, negotiate
from toolgate.server.protocol.session import Call, Session
from toolgate.server.server import Server

log = logging.getLogger("toolgate.session")

EXTENSIONS: dict[str, dict[str, Any]] = {  # what is served beside the core, and its settings
    TASKS: {},
    "io.modelcontextprotocol/skills": {"directoryRead": True},
}


def initialize(server: Server) -> Callable[[Call], Awaitable[dict[str, Any]]]:
    async def answer(call: Call) -> dict[str, Any]:
        """initialize: the newest revision we share, or our newest of that era."""
        session, params = call.session, call.params
        if session.revision is not None:
            raise InvalidRequest("this session is initialized already")
        if not isinstance(params.get("protocolVersion"), str):
            raise InvalidParams("'protocolVersion' must be a string")
        session.capabilities = _object(params, "capabilities")
        client = _object(params, "clientInfo")
        session.revision = revision = negotiate(params["protocolVersion"])
        server.notifications.sessions.add(session)
        told = str(client.get("name", "?"))[:64], str(client.get("version", "?"))[:32]
        session.client = session.client or told[0]
        log.debug("client %r %r, revision %s", *told, revision.name)
        await session.save()  # before the client can know its id
        return {
            "protocolVersion": revision.name,
            "capabilities": _capabilities(revision),
            "serverInfo": server.identity(revision),
            **_instructions(server),
        }

    return answer


def discover(server: Server) -> Callable[[Call], dict[str, Any]]:
    def answer(call: Call) -> dict[str, Any]:
        """server/discover: what a client of the stateless era may know before it asks for anything."""
        known = {
            "supportedVersions": list(SUPPORTED),
            "capabilities": _capabilities(call.revision),
            **_instructions(server),
        }
        return serialization.add_cache_hints(known, call.revision, serialization.CACHE_FOR)

    return answer


def ping(call: Call) -> dict[str, Any]:
    return {}


def mark_ready(server: Server) -> Callable[[Session, dict[str, Any]], None]:
    def note(session: Session, params: dict[str, Any]) -> None:
        session.ready = session.revision is not None

    return note


def resume_session(server: Server) -> Callable[[Session, Iterable[str]], Awaitable[None]]:
    async def go_on(session: Session, uris: Iterable[str]) -> None:
        """A session that an earlier process began goes on here, subscribed to what it still may read."""
        session.ready = True
        server.notifications.sessions.add(session)
        async for uri in yield_in_turns(uris, len):
            if (
                server.registry.resource(uri) is not None
                and await resource_rules.find_refusal(server, session, uri) is None
            ):
                wanted = server.registry.scopes_of(uri) if session.scopes is not None else frozenset[str]()
                if server.updates.subscribe(session, session.principal, uri):
                    session.subscribed[uri] = wanted

    return go_on


def cancel_request(session: Session, params: dict[str, Any]) -> None:
    """notifications/cancelled; one about something unknown or already answered is ignored."""
    id = params.get("requestId")
    if isinstance(id, (int, str)) and not isinstance(id, bool):
        session.cancel(id)


def _capabilities(revision: Revision) -> dict[str, Any]:
    """Exactly what is served."""
    declared: dict[str, Any] = {
        "tools": {"listChanged": True},
        "prompts": {"listChanged": True},
        "resources": {"subscribe": True, "listChanged": True},
        "logging": {},
    }
    if revision.completions:
        declared["completions"] = {}
    if revision.extensions:
        declared["extensions"] = EXTENSIONS
    return declared


def _instructions(server: Server) -> dict[str, str]:
    text = instructions(server.policy.rules.without_denied(server.registry.tools))
    return {} if text is None else {"instructions": text}


def _object(params: dict[str, Any], name: str) -> dict[str, Any]:
    value = params.get(name, {})
    if not isinstance(value, dict):
        raise InvalidParams(f"{name!r} must be an object")
    return value

"""Open a conversation in both eras, set its log level, and cancel its requests."""

import logging
from collections.abc import Collection, Iterable
from typing import Any

from toolgate.server.methods import resources
from toolgate.server.methods.server import Server
from toolgate.server.protocol import serialization
from toolgate.server.protocol.errors import InvalidParams, InvalidRequest
from toolgate.server.protocol.message_ids import is_id
from toolgate.server.protocol.request_meta import TASKS
from toolgate.server.protocol.resource_updates import yield_in_turns
from toolgate.server.protocol.revisions import SUPPORTED, Revision, negotiate
from toolgate.server.protocol.session import LEVELS, Call, Session

log = logging.getLogger("toolgate.session")

EXTENSIONS: dict[str, dict[str, Any]] = {  # extensions beside the core, with their settings
    TASKS: {},
    "io.modelcontextprotocol/skills": {"directoryRead": True},
}
FAMILIES = (  # purpose → tools
    ("commands", ("Bash", "BackgroundBash")),
    ("the web", ("ReadDocs", "WebSearch")),
    ("pictures", ("ReadImage",)),
    ("to-do lists and plans", ("TaskManager", "PlanMode")),
    ("skills", ("InvokeSkill",)),
    ("questions to the person", ("AskUserQuestion",)),
)
PREFERENCES = (  # tool → when to prefer it
    (
        "BackgroundBash",
        "Prefer BackgroundBash to your own shell for servers, builds and what should go on while you work.",
    ),
    ("SetCallback", "SetCallback brings a message back to you later."),
)


async def initialize(server: Server, call: Call) -> dict[str, Any]:
    """Answer initialize: the newest revision both sides know, or our newest of that era."""
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
    await session.save()  # stored before the client knows its id
    return {
        "protocolVersion": revision.name,
        "capabilities": _capabilities(server, revision),
        "serverInfo": server.identity(revision),
        **await _instructions(server, session),
    }


async def discover(server: Server, call: Call) -> dict[str, Any]:
    """Answer server/discover: what a client of the stateless era may know before its first request."""
    capabilities = _capabilities(server, call.revision)
    info = {
        "supportedVersions": list(SUPPORTED),
        "capabilities": capabilities,
        **await _instructions(server, call.session),
    }
    return serialization.add_cache_hints(info, call.revision, serialization.CACHE_FOR)


def ping(call: Call) -> dict[str, Any]:
    return {}


def mark_ready(session: Session, params: dict[str, Any]) -> None:
    session.ready = session.revision is not None


async def set_log_level(call: Call) -> dict[str, Any]:
    """Answer logging/setLevel; in the stateless era each request has its level in `_meta`."""
    level = call.params.get("level")
    if level not in LEVELS:
        raise InvalidParams(f"'level' must be one of {', '.join(LEVELS)}")
    call.session.log_level = LEVELS.index(level)
    await call.session.save()
    return {}


async def resume_session(server: Server, session: Session, uris: Iterable[str]) -> None:
    """Resume a session of an earlier process, with the subscriptions it may still have."""
    session.ready = True
    await share_session(server, session, uris)


async def share_session(server: Server, session: Session, uris: Iterable[str]) -> None:
    """Let this process notify a session of other replicas, whose subscriptions are now these."""
    server.notifications.sessions.add(session)
    uris = dict.fromkeys(uris)
    for uri in [uri for uri in session.subscribed if uri not in uris]:
        del session.subscribed[uri]
        server.updates.unsubscribe(session, session.principal, uri)
    async for uri in yield_in_turns([uri for uri in uris if uri not in session.subscribed], len):
        is_served = server.find_watchable(session.principal, uri) is not None
        if not is_served or await resources.find_refusal(server, session, uri) is not None:
            continue
        scopes = server.registry.scopes_of(uri) if session.scopes is not None else frozenset[str]()
        if server.updates.subscribe(session, session.principal, uri):
            session.subscribed[uri] = scopes


def cancel_request(session: Session, params: dict[str, Any]) -> None:
    """Handle notifications/cancelled; for an unknown or answered request it is ignored."""
    id = params.get("requestId")
    if is_id(id):
        session.cancel(id)


def _capabilities(server: Server, revision: Revision) -> dict[str, Any]:
    """Return the capabilities of what is served."""
    declared: dict[str, Any] = {
        "tools": {"listChanged": True},
        "prompts": {"listChanged": True},
        "resources": {"subscribe": True, "listChanged": True},
        "logging": {},
        # most clients look here, not at the extension
        **{each.name: each.settings if revision.extensions else {} for each in server.capabilities},
    }
    if revision.completions:
        declared["completions"] = {}
    if revision.extensions:
        declared["extensions"] = EXTENSIONS | {each.extension: each.settings for each in server.capabilities}
    return declared


def format_instructions(served: Collection[str]) -> str | None:
    """Return what a model reads about a server with these tools before it looks at any, or None without built-in tools.

    Clients that load tools on demand show little else. It says what the server is for, and when to prefer it to the
    client's own tools. It names only tools that are served.
    """
    families = [
        f"{purpose} ({', '.join(names)})"
        for purpose, among in FAMILIES
        if (names := [name for name in among if name in served])
    ]
    sentences = [f"Tools on the machine of this server: {', '.join(families)}."] if families else []
    return " ".join([*sentences, *(text for name, text in PREFERENCES if name in served)]) or None


async def _instructions(server: Server, session: Session) -> dict[str, str]:
    text = format_instructions(server.policy.rules.without_denied(server.registry.tools)) or ""
    if server.views is not None:
        await server.views.prepare(session)
        text = "\n\n".join(filter(None, (text, server.views.instructions(session))))
    return {"instructions": text} if text else {}


def _object(params: dict[str, Any], name: str) -> dict[str, Any]:
    value = params.get(name, {})
    if not isinstance(value, dict):
        raise InvalidParams(f"{name!r} must be an object")
    return value

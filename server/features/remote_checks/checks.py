"""Check a server as a hosted client sees it: name, TLS, challenge, metadata, registration, sign-in page, tokens.

With an access token it also checks calls and event streams.

The server's answers are not trusted: they don't decide what is removed, where a token goes, or which addresses inside a
network are asked. The client registered for the check is removed if the server offers that.

Source: MCP 2026-07-28 basic/authorization, basic/transports; RFC 9728, 8414, 7591, 7592, 6749; the platforms' pages.
"""

from collections.abc import Awaitable, Callable, Mapping
from functools import partial

from toolgate.server.cli.doctor.report import CheckFinding, CheckRow
from toolgate.server.features.remote_checks import calls, connection, sign_in
from toolgate.server.features.remote_checks.target import RemoteTarget

RemoteCheck = Callable[[RemoteTarget], Awaitable[CheckFinding]]

REMOTE_CHECKS: Mapping[str, tuple[RemoteCheck, tuple[str, ...]]] = {  # in order, each with the checks it depends on
    "name": (connection.name, ()),
    "connection": (connection.connection, ("name",)),
    "TLS": (connection.tls, ("connection",)),
    "https alone": (connection.https_alone, ("TLS",)),
    "no redirect": (connection.no_redirect, ("connection",)),
    "HTTP version": (connection.version, ("no redirect",)),
    "clock": (connection.clock, ("no redirect",)),
    "server": (connection.server, ("no redirect",)),
    "challenge": (connection.challenge, ("no redirect",)),
    "errors": (connection.errors, ("challenge",)),
    "made-up token": (connection.made_up_token, ("challenge",)),
    "resource metadata": (sign_in.resource_metadata, ("challenge",)),
    "resource": (sign_in.same_resource, ("resource metadata",)),
    "server metadata": (sign_in.server_metadata, ("resource metadata",)),
    "issuer": (sign_in.same_issuer, ("server metadata",)),
    "abilities": (sign_in.abilities, ("server metadata",)),
    "keys": (sign_in.keys, ("server metadata",)),
    "CORS": (sign_in.cors, ("server metadata",)),
    "registration": (sign_in.registration, ("server metadata",)),
    "sign-in page": (sign_in.sign_in_page, ("registration",)),
    "token endpoint": (sign_in.token_endpoint, ("server metadata",)),
    "clean-up": (sign_in.clean_up, ()),
    "first call": (calls.first_call, ("resource",)),
    "session": (calls.session, ()),
    "protocol version": (calls.protocol_version, ()),
    "newest revision": (calls.newest_revision, ()),
    "large message": (calls.large_message, ("challenge",)),
    "event streams": (calls.event_streams, ()),
    "quiet stream": (calls.quiet_stream, ("event streams",)),
    "session's end": (calls.session_end, ()),
}


def remote_checks(url: str, token: str) -> list[CheckRow]:
    """Return the checks of the server at `url`, with an access token or "". Raises UsageError for an invalid URL."""
    target = RemoteTarget(url, token)
    return [(name, partial(check, target), needs) for name, (check, needs) in REMOTE_CHECKS.items()]

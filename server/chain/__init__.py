"""The way of a hosted client to a server, link by link: name, TLS, challenge, metadata, registration, sign-in page,
tokens, and with a token calls and event streams. Knows what must be there, as the specification and the platforms want
it. What a server says is not believed: it decides neither what is removed, nor where a token goes, nor what of a
network inside is asked. The client that is registered on the way is removed where the server offers that.

Source: MCP 2026-07-28 basic/authorization, basic/transports; RFC 9728, 8414, 7591, 7592, 6749; the platforms' pages.
"""

from collections.abc import Awaitable, Callable, Mapping
from functools import partial

from toolgate.server.chain import calls, documents, reaching, signing_in, streams
from toolgate.server.chain.way import Way
from toolgate.server.checks import Finding, Row
from toolgate.server.config import Config

Link = Callable[[Way], Awaitable[Finding]]

LINKS: Mapping[str, tuple[Link, tuple[str, ...]]] = {  # in order, each with those it hangs on
    "name": (reaching.name, ()),
    "connection": (reaching.connection, ("name",)),
    "TLS": (reaching.tls, ("connection",)),
    "https alone": (reaching.https_alone, ("TLS",)),
    "no redirect": (reaching.no_redirect, ("connection",)),
    "HTTP version": (reaching.version, ("no redirect",)),
    "clock": (reaching.clock, ("no redirect",)),
    "server": (reaching.server, ("no redirect",)),
    "challenge": (reaching.challenged, ("no redirect",)),
    "errors": (reaching.errors, ("challenge",)),
    "made-up token": (reaching.made_up_token, ("challenge",)),
    "resource metadata": (documents.resource_metadata, ("challenge",)),
    "resource": (documents.same_resource, ("resource metadata",)),
    "server metadata": (documents.server_metadata, ("resource metadata",)),
    "issuer": (documents.same_issuer, ("server metadata",)),
    "abilities": (documents.abilities, ("server metadata",)),
    "keys": (documents.keys, ("server metadata",)),
    "CORS": (documents.cors, ("server metadata",)),
    "registration": (signing_in.registration, ("server metadata",)),
    "sign-in page": (signing_in.sign_in_page, ("registration",)),
    "token endpoint": (signing_in.token_endpoint, ("server metadata",)),
    "clean-up": (signing_in.clean_up, ()),
    "first call": (calls.first_call, ("resource",)),
    "session": (calls.session, ()),
    "protocol version": (calls.protocol_version, ()),
    "newest revision": (calls.newest_revision, ()),
    "large message": (calls.large_message, ("challenge",)),
    "event streams": (streams.event_streams, ()),
    "quiet stream": (streams.quiet_stream, ("event streams",)),
    "session's end": (calls.session_end, ()),
}


def rows(url: str, config: Config) -> list[Row]:
    """The links of the way to `url`. Raises UsageError for what is none."""
    way = Way(url, config)
    return [(name, partial(link, way), needs) for name, (link, needs) in LINKS.items()]

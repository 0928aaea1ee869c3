"""Search each byte that a forked server sends to what is mounted for the access tokens of its clients.

A server that is about to send one writes a line to its log, and ends before a byte has left. forked_command.py
knows its exit code, and tests/conftest.py fails the test.
"""

import base64
import contextlib
import functools
import importlib
import os
import re
import sys
import traceback
import weakref
from collections.abc import Callable, Iterable, Iterator
from typing import Any

JWT = re.compile(rb"eyJ[\w-]+\.(eyJ[\w-]+)\.")  # its claims
PART = re.compile(rb"[\w.+/= -]")  # a character of a token, or of Basic credentials
BASIC = re.compile(rb"Basic ([\w+/=]+)")
LONGEST = 16 * 1024  # bytes of a token
DEPTH = 12  # lines of the stack that shows where the token was
DOORS = (  # where the tokens of clients are verified
    ("toolgate.server.auth.tokens.access_tokens", "OwnTokens"),
    ("toolgate.server.auth.tokens.external_issuer", "ExternalTokens"),
)
STREAMS = (  # the input of a program
    ("toolgate.tools.workspace.commands.local_program", "LocalProgram"),
    ("toolgate.server.features.nodes.gateway.node_program", "NodeProgram"),
    ("toolgate.server.features.mounts.plugins.program", "PluginProgram"),
)
STARTERS = (  # its arguments and environment
    ("toolgate.tools.workspace.local_workspace", "LocalWorkspace"),
    ("toolgate.server.features.nodes.gateway.remote_workspace", "NodeWorkspace"),
)
CONNECTIONS = (("toolgate.server.features.mounts.upstream.http_connection", "UpstreamConnection"),)  # to a URL
REQUESTS = (("toolgate.server.cli.sign_in.requests", "OAuthRequests"),)  # to authorization servers

Method = Callable[..., Any]


class TokenSearch:
    """The tokens that clients have sent to this server, and what it has sent. `end()` is called at a finding."""

    def __init__(self, end: Callable[[], object]) -> None:
        self._end = end
        self._claims: set[bytes] = set()
        self._tails: weakref.WeakKeyDictionary[Any, bytes] = weakref.WeakKeyDictionary()

    def note(self, token: str) -> None:
        self._claims.update(JWT.findall(token.encode()))

    def search_stream(self, way: Any, data: bytes) -> None:
        """Search what goes one way out, and what spans two writes."""
        sent = self._tails.pop(way, b"") + data
        self.search(sent)
        if PART.match(sent[-1:]):  # a token may go on
            self._tails[way] = sent[-LONGEST:]

    def search(self, *parts: bytes) -> None:
        for data in parts:
            if (b"eyJ" in data or b"Basic " in data) and not self._claims.isdisjoint(_list_claims(data)):
                stack = "".join(traceback.format_stack(limit=DEPTH))
                print(f"an access token of a client was on its way out:\n{stack}", file=sys.stderr, flush=True)
                self._end()


class SearchedTransport:
    """A transport whose bytes are searched before they leave."""

    def __init__(self, transport: Any, search: TokenSearch) -> None:
        self._transport = transport
        self._search = search

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)

    def write(self, data: bytes) -> None:
        self._search.search_stream(self, data)
        self._transport.write(data)


def search_forks(exit_code: int) -> None:
    """Search what this process and its forks send. A module that a test has deleted sends nothing."""
    search = TokenSearch(functools.partial(os._exit, exit_code))
    for rows, name, wrap in (
        (DOORS, "verify", _note_token),
        (STREAMS, "write", _search_write),
        (STARTERS, "open_program", _search_start),
        (REQUESTS, "send", _search_request),
        (CONNECTIONS, "connection_made", _search_connection),
    ):
        for owner in _find_classes(rows):
            method = getattr(owner, name)
            setattr(owner, name, functools.wraps(method)(wrap(method, search)))


def _find_classes(rows: Iterable[tuple[str, str]]) -> Iterator[Any]:
    for module, name in rows:
        with contextlib.suppress(ModuleNotFoundError):  # tests/architecture/test_rooms.py says so, and names it
            yield getattr(importlib.import_module(module), name)


def _list_claims(data: bytes) -> Iterator[bytes]:
    yield from JWT.findall(data)
    for credentials in BASIC.findall(data):
        with contextlib.suppress(ValueError):
            yield from JWT.findall(base64.b64decode(credentials))


def _note_token(verify: Method, search: TokenSearch) -> Method:
    def note_and_verify(verifier: Any, token: str) -> Any:
        search.note(token)
        return verify(verifier, token)

    return note_and_verify


def _search_write(write: Method, search: TokenSearch) -> Method:
    def search_and_write(stream: Any, data: bytes) -> Any:
        search.search_stream(stream, data)
        return write(stream, data)

    return search_and_write


def _search_start(start: Method, search: TokenSearch) -> Method:
    def search_and_start(workspace: Any, argv: Any, **how: Any) -> Any:
        search.search(*map(str.encode, (*argv, *how["env"].values())))
        return start(workspace, argv, **how)

    return search_and_start


def _search_request(send: Method, search: TokenSearch) -> Method:
    def search_and_send(requests: Any, method: str, url: str, headers: Any, body: bytes = b"") -> Any:
        search.search(url.encode(), *map(str.encode, headers.values()), body)
        return send(requests, method, url, headers, body)

    return search_and_send


def _search_connection(connect: Method, search: TokenSearch) -> Method:
    def connect_searched(connection: Any, transport: Any) -> Any:
        return connect(connection, SearchedTransport(transport, search))

    return connect_searched

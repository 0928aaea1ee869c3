"""The official Python client signs in to the real server: it starts from the 401 alone, a person approves, and it
refreshes its tokens."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import mcp_types as types
import pytest
from mcp import Client
from mcp.client.auth import AuthorizationCodeResult, OAuthClientProvider, OAuthFlowError
from mcp.client.sse import sse_client
from mcp.client.streamable_http import streamable_http_client
from mcp.shared._httpx_utils import create_mcp_http_client
from mcp.shared.auth import OAuthClientInformationFull, OAuthClientMetadata, OAuthToken

from tests.clients.raw_client import PATIENCE, STATELESS
from tests.interop.official_clients import AUTO, OVER_HTTP, THIRTEEN, Negotiation, crossed, told_apart
from tests.interop.sign_in_server import WAYS_IN, SignInServer, sign_in_server
from toolgate.server.base.principals.scopes import PLUGINS, READ, SERVED, SHELL

ALL = {*SERVED, "offline_access"} - {PLUGINS}  # no plugins here; this client adds the other scope by itself
CALLBACK = "http://127.0.0.1:3030/callback"  # no program listens: the person's answer is passed on directly

ways = pytest.mark.parametrize("way", told_apart(OVER_HTTP))
ways_in = pytest.mark.parametrize(("way", "known"), crossed(OVER_HTTP, WAYS_IN, later=AUTO))


class StoredTokens:
    """A client's stored tokens; it was sent to sign in for each of `visits`."""

    def __init__(self) -> None:
        self.tokens: OAuthToken | None = None
        self.client: OAuthClientInformationFull | None = None
        self.every: list[OAuthToken] = []
        self.visits = 0

    async def get_tokens(self) -> OAuthToken | None:
        return self.tokens

    async def set_tokens(self, tokens: OAuthToken) -> None:
        self.tokens = tokens
        self.every.append(tokens)

    async def get_client_info(self) -> OAuthClientInformationFull | None:
        return self.client

    async def set_client_info(self, client_info: OAuthClientInformationFull) -> None:
        self.client = client_info

    @property
    def access(self) -> str:
        assert self.tokens is not None
        return self.tokens.access_token

    @property
    def scopes(self) -> set[str]:
        assert self.tokens is not None
        return set((self.tokens.scope or "").split())


def provider(gate: SignInServer, kept: StoredTokens, url: str, known: str, **decision: Any) -> OAuthClientProvider:
    """Return the client's sign-in; the person decides as given, then approves."""
    answers: list[dict[str, str]] = []

    async def redirect(question: str) -> None:
        answers.append(await asyncio.to_thread(gate.person.answer, question, **({} if kept.visits else decision)))
        kept.visits += 1

    async def callback() -> AuthorizationCodeResult:
        answer = answers.pop()
        if "error" in answer:
            raise OAuthFlowError(answer["error"])
        return AuthorizationCodeResult(code=answer["code"], state=answer["state"], iss=answer["iss"])

    return OAuthClientProvider(
        server_url=url,
        client_metadata=OAuthClientMetadata(
            client_name="Fernhill",
            redirect_uris=[CALLBACK],  # type: ignore[list-item]  # it is made a URL
            grant_types=["authorization_code", "refresh_token"],
            token_endpoint_auth_method="none",
        ),
        storage=kept,
        redirect_handler=redirect,
        callback_handler=callback,
        client_metadata_url=gate.document if known == "document" else None,
    )


@contextlib.asynccontextmanager
async def connected(
    gate: SignInServer, kept: StoredTokens, way: Negotiation, known: str = "dynamic", **decision: Any
) -> AsyncIterator[Client]:
    url = gate.url(way.carrier)
    auth = provider(gate, kept, url, known, **decision)
    async with asyncio.timeout(3 * PATIENCE), contextlib.AsyncExitStack() as stack:
        if way.carrier == "sse":
            transport: Any = sse_client(url, auth=auth)
        else:
            http = await stack.enter_async_context(create_mcp_http_client(auth=auth))
            transport = streamable_http_client(url, http_client=http)
        yield await stack.enter_async_context(Client(transport, mode=way.mode))


def text(result: types.CallToolResult) -> str:
    assert not result.is_error, result
    return "\n".join(block.text for block in result.content if isinstance(block, types.TextContent))


@pytest.mark.brief("http 2026-07-28-dynamic", "sse legacy-document")
@ways_in
def test_a_client_that_knows_only_the_url_signs_in_lists_and_calls(
    tmp_path: Path, way: Negotiation, known: str
) -> None:
    async def main(gate: SignInServer) -> None:
        kept = StoredTokens()
        async with connected(gate, kept, way, known) as client:
            assert client.protocol_version == ("2025-11-25" if way.mode == "legacy" else STATELESS)
            assert [tool.name for tool in (await client.list_tools()).tools] == THIRTEEN
            assert text(await client.call_tool("Bash", {"command": "echo in"})) == "in\n"
        assert kept.visits == 1
        assert kept.scopes == ALL  # the 401's challenge named all
        assert kept.client is not None
        assert (kept.client.client_id == gate.document) is (known == "document")
        assert len(gate.fetched) == (known == "document")  # once, then kept
        [asked] = gate.person.asked
        assert ("not verified" in asked) is (known == "dynamic")

    with sign_in_server(tmp_path) as gate:
        asyncio.run(main(gate))


@pytest.mark.brief("http 2026-07-28-dynamic")
@pytest.mark.brief("http 2026-07-28-dynamic", "sse legacy-document")
@ways_in
def test_a_session_goes_on_when_its_token_ends(tmp_path: Path, way: Negotiation, known: str) -> None:
    async def main(gate: SignInServer) -> None:
        kept = StoredTokens()
        async with connected(gate, kept, way, known) as client:
            assert text(await client.call_tool("Bash", {"command": "cd / && echo one"})) == "one\n"
            first = kept.tokens
            assert first is not None
            while kept.tokens is first:  # like a busy client: no call may meet a token that has just ended
                assert text(await client.call_tool("Bash", {"command": "echo two"})) == "two\n"
            assert kept.tokens is not None
        assert kept.visits == 1  # no second sign-in
        assert kept.access != first.access_token
        assert kept.tokens.refresh_token != first.refresh_token
        assert kept.scopes == ALL

    with sign_in_server(tmp_path, short_tokens=True) as gate:
        asyncio.run(main(gate))


def test_a_returning_client_signs_in_with_its_stored_tokens(tmp_path: Path) -> None:
    """If they have ended, this client starts a new sign-in."""

    async def main(gate: SignInServer) -> None:
        kept = StoredTokens()
        for visits in (1, 1, 2):
            if visits > 1:
                assert kept.client is not None and kept.client.client_id is not None
                await asyncio.to_thread(gate.revoke, kept.access, kept.client.client_id)
            async with connected(gate, kept, Negotiation("http", "auto")) as client:
                assert text(await client.call_tool("Bash", {"command": "echo in"})) == "in\n"
            assert kept.visits == visits

    with sign_in_server(tmp_path) as gate:
        asyncio.run(main(gate))


@pytest.mark.parametrize("mode", ["legacy", STATELESS])
def test_a_client_asks_for_more_when_a_call_needs_more(tmp_path: Path, mode: str) -> None:
    async def main(gate: SignInServer) -> None:
        kept = StoredTokens()
        async with connected(gate, kept, Negotiation("http", mode), untick=[SHELL]) as client:
            await client.list_tools()
            assert READ in kept.scopes
            assert SHELL not in kept.scopes
            assert text(await client.call_tool("Bash", {"command": "echo in"})) == "in\n"
        assert SHELL in kept.scopes
        assert kept.visits == 2

    with sign_in_server(tmp_path) as gate:
        asyncio.run(main(gate))


@pytest.mark.brief("http legacy")
@ways
def test_a_client_that_is_denied_gets_nothing(tmp_path: Path, way: Negotiation) -> None:
    async def main(gate: SignInServer) -> None:
        kept = StoredTokens()
        with pytest.raises(BaseException) as caught:  # a group, however deep
            async with connected(gate, kept, way, decision="deny") as client:
                await client.list_tools()
        assert "access_denied" in repr(caught.value)
        assert kept.tokens is None

    with sign_in_server(tmp_path) as gate:
        asyncio.run(main(gate))

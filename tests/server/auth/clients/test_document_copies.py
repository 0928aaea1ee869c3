"""A server that can't reach the hosts of well-known clients uses copies of their documents, and logs it."""

import asyncio
import json
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from tests.server.auth.authorization_in_process import AuthServer, with_auth_server
from toolgate.server.auth.clients import redirect_uris
from toolgate.server.auth.clients.document_copies import DOCUMENT_COPIES
from toolgate.server.auth.clients.fetching import AGAIN, PAUSE
from toolgate.server.auth.oauth_server.consent_requests import ConsentRequest
from toolgate.server.auth.oauth_server.responses import ErrorPage
from toolgate.tools.api.context.services import Page
from toolgate.tools.api.outbound.errors import AddressRefusedError

CLAUDE_CODE, CODEX = (
    "https://claude.ai/oauth/claude-code-client-metadata",
    "https://chatgpt.com/oauth/codex/client.json",
)
BACK = "http://localhost:3118/callback"
STRANGER = "https://app.example/client.json"
REFUSES = Page("", 403, {"content-type": "text/html"}, b"<h1>no robots</h1>", False)


async def takes_documents(auth: AuthServer) -> bool:
    return bool((await auth.authorization.metadata())["client_id_metadata_document_supported"])


async def settled(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(10):
        while not holds():
            await asyncio.sleep(0)


async def refused(auth: AuthServer, id: str) -> ErrorPage:
    """Return the error for an unreachable document, after this server has tried the well-known hosts."""
    outcome = await auth.asked(id)
    assert isinstance(outcome, ErrorPage), outcome
    await settled(lambda: auth.authorization._documents.reachability._trying is None)
    return outcome


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]


@pytest.mark.parametrize(("url", "name"), [(CLAUDE_CODE, "Claude Code"), (CODEX, "Codex")])
def test_a_copy_is_whole_and_sends_codes_to_loopback_alone(url: str, name: str) -> None:
    copy = DOCUMENT_COPIES[url]
    told = json.loads(copy.text)
    assert copy.is_intact and (told["client_id"], told["client_name"]) == (url, name)
    assert redirect_uris.is_loopback_only(told["redirect_uris"])


@pytest.mark.parametrize("url", [CLAUDE_CODE, CODEX])
def test_a_well_known_client_that_can_not_be_fetched_is_known_by_its_copy(tmp_path: Path, url: str) -> None:
    async def body(auth: AuthServer) -> None:
        question = await auth.asked(url, redirect_uri=BACK)
        assert isinstance(question, ConsentRequest) and question.client.kind == "document"
        assert isinstance(await auth.asked(url, redirect_uri="https://app.example/back"), ErrorPage)
        answer = await auth.redeem(url, await auth.code(url, redirect_uri=BACK), redirect_uri=BACK)
        auth.clock.now += 7 * 86_400
        assert (await auth.refresh(url, answer.body["refresh_token"])).status == 200
        for other in (f"{url}/", url.replace("https://", "https://www."), f"{url}:443"):
            assert isinstance(await auth.asked(other, redirect_uri=BACK), ErrorPage), other

    with_auth_server(tmp_path, body)


@pytest.mark.parametrize("page", [REFUSES, b"no JSON", {"client_id": CLAUDE_CODE}], ids=["refused", "text", "nameless"])
def test_no_copy_stands_in_for_a_document_that_is_malformed(tmp_path: Path, page: Any) -> None:
    async def body(auth: AuthServer) -> None:
        auth.pages.held[CLAUDE_CODE] = page
        assert isinstance(await auth.asked(CLAUDE_CODE, redirect_uri=BACK), ErrorPage)

    with_auth_server(tmp_path, body)


def test_a_copy_that_was_changed_is_not_used(tmp_path: Path) -> None:
    copy = DOCUMENT_COPIES[CLAUDE_CODE]
    changed = {CLAUDE_CODE: replace(copy, text=copy.text.replace(b"127.0.0.1", b"evil.example"))}

    async def body(auth: AuthServer) -> None:
        assert isinstance(await auth.asked(CLAUDE_CODE, redirect_uri=BACK), ErrorPage)

    with_auth_server(tmp_path, body, document_copies=changed)


def test_a_document_that_was_fetched_holds_longer_than_the_copy(tmp_path: Path) -> None:
    newer = {**json.loads(DOCUMENT_COPIES[CLAUDE_CODE].text), "client_name": "Claude Code 3"}

    async def body(auth: AuthServer) -> None:
        auth.pages.held[CLAUDE_CODE] = newer
        for _ in range(3):
            question = await auth.asked(CLAUDE_CODE, redirect_uri=BACK)
            assert isinstance(question, ConsentRequest) and question.client.name == "Claude Code 3"
            auth.pages.held.clear()
            auth.clock.now += 86_400

    with_auth_server(tmp_path, body)


def test_a_server_that_reaches_no_document_says_so_once_and_lets_clients_register(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def body(auth: AuthServer) -> None:
        assert await takes_documents(auth)
        told = await refused(auth, STRANGER)
        assert told.document == STRANGER and "can't be reached" in told.description and told.advice is not None
        assert "register itself" in told.advice.sentences[0]
        assert not await takes_documents(auth)
        auth.clock.now += PAUSE
        await refused(auth, STRANGER)
        assert [text for text in warnings(caplog) if "claude.ai and chatgpt.com" in text] == warnings(caplog)
        assert len(warnings(caplog)) == 1 and "--registration dynamic" in warnings(caplog)[0]
        auth.pages.held[CODEX] = json.loads(DOCUMENT_COPIES[CODEX].text)
        auth.clock.now += AGAIN
        assert not await takes_documents(auth)  # this asks for it
        await settled(lambda: not auth.authorization._documents.reachability.is_unreachable)
        assert await takes_documents(auth)

    with_auth_server(tmp_path, body)


def test_a_document_that_is_fetched_again_brings_documents_back_at_once(tmp_path: Path) -> None:
    async def body(auth: AuthServer) -> None:
        await refused(auth, STRANGER)
        auth.pages.held[STRANGER] = {"client_id": STRANGER, "client_name": "Fernhill", "redirect_uris": [BACK]}
        assert isinstance(await auth.asked(STRANGER, redirect_uri=BACK), ConsentRequest)
        assert not await takes_documents(auth)  # a host that a stranger named proves nothing
        auth.pages.held[CLAUDE_CODE] = json.loads(DOCUMENT_COPIES[CLAUDE_CODE].text)
        assert isinstance(await auth.asked(CLAUDE_CODE, redirect_uri=BACK), ConsentRequest)
        assert await takes_documents(auth)

    with_auth_server(tmp_path, body)


@pytest.mark.parametrize("answer", [REFUSES, json.loads(DOCUMENT_COPIES[CODEX].text)], ids=["403", "the document"])
def test_a_stranger_can_not_switch_documents_off(tmp_path: Path, answer: Any, caplog: pytest.LogCaptureFixture) -> None:
    """Any answer of one well-known host is enough, and there is one try a minute."""

    async def body(auth: AuthServer) -> None:
        auth.pages.held[CODEX] = answer
        for number in range(20):
            await refused(auth, f"https://app{number}.example/client.json")
        assert await takes_documents(auth) and warnings(caplog) == []
        assert [url for url in auth.pages.asked if url in DOCUMENT_COPIES] == [CLAUDE_CODE, CODEX]

    with_auth_server(tmp_path, body)


def test_a_name_that_leads_inside_is_out_of_reach_like_any_other(tmp_path: Path) -> None:
    """A network may resolve claude.ai itself; the page reveals nothing about private addresses."""

    async def body(auth: AuthServer) -> None:
        inside = AddressRefusedError("refused: claude.ai is at 10.0.0.1, which is private")
        auth.pages.held |= dict.fromkeys((CLAUDE_CODE, CODEX, STRANGER), inside)
        told = await refused(auth, STRANGER)
        assert told.description == "the client's metadata document can't be reached from this server"
        assert isinstance(await auth.asked(CODEX, redirect_uri=BACK), ConsentRequest)
        await settled(lambda: auth.authorization._documents.reachability.is_unreachable)
        assert not await takes_documents(auth)

    with_auth_server(tmp_path, body)


def test_where_clients_can_not_register_documents_stay_advertised(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Clients with a copy could not connect otherwise."""

    async def body(auth: AuthServer) -> None:
        await refused(auth, STRANGER)
        assert await takes_documents(auth) and "--registration open" in warnings(caplog)[0]
        assert isinstance(await auth.asked(CODEX, redirect_uri=BACK), ConsentRequest)

    with_auth_server(tmp_path, body, registration="metadata")


@pytest.mark.parametrize(
    "options", [{"client_hosts": ("app.example",)}, {"registration": "dynamic"}, {"registration": "closed"}], ids=str
)
def test_a_host_that_is_not_accepted_is_never_tried(tmp_path: Path, options: dict[str, Any]) -> None:
    async def body(auth: AuthServer) -> None:
        for id in (STRANGER, CLAUDE_CODE):
            await refused(auth, id)
        await takes_documents(auth)
        assert set(auth.pages.asked) <= {STRANGER}

    with_auth_server(tmp_path, body, **options)

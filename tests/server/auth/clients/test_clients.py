"""OAuth clients: registration, metadata documents, and where codes may go."""

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from tests.clients.raw_client import PATIENCE
from tests.server.auth.authorization_in_process import ADA, BACK, AuthServer, auth_server, query, with_auth_server
from toolgate.server.auth import setup
from toolgate.server.auth.clients import redirect_uris
from toolgate.server.auth.clients.clients_file import read_clients
from toolgate.server.auth.clients.metadata_documents import ALL_NEW, NEW
from toolgate.server.auth.clients.model import OAuthClient, display_name, is_document_url
from toolgate.server.auth.oauth_server.consent_requests import LIFETIME, ConsentRequest
from toolgate.server.auth.oauth_server.endpoints import MAX_CLIENTS
from toolgate.server.auth.oauth_server.responses import ErrorPage, Redirect
from toolgate.server.auth.oauth_server.service import ALL_REGISTRATIONS, REGISTRATIONS
from toolgate.server.auth.tokens import jose
from toolgate.server.base.errors import UsageError
from toolgate.server.state.rows.clients import UNAPPROVED_LIFETIME, UNUSED_LIFETIME
from toolgate.server.state.rows.grants import hash_secret
from toolgate.tools.api.context.services import Page
from toolgate.tools.api.outbound.fetch import Web

DOCUMENT = "https://app.example/oauth/client.json"


def document(**more: Any) -> dict[str, Any]:
    given = {
        "client_id": DOCUMENT,
        "client_name": "Fernhill",
        "redirect_uris": [BACK, "http://127.0.0.1/callback"],
        "token_endpoint_auth_method": "none",
        "grant_types": ["authorization_code", "refresh_token"],
        **more,
    }
    return {name: value for name, value in given.items() if value is not None}


# Dynamic registration


def test_rg_01_rg_04_a_public_client_is_told_what_was_taken_and_no_secret(tmp_path: Path) -> None:
    async def body(auth: AuthServer) -> None:
        given = {
            "redirect_uris": [BACK, "http://localhost:3000/cb", "cursor://anysphere.cursor-mcp/oauth/callback"],
            "token_endpoint_auth_method": "none",
            "grant_types": ["authorization_code", "refresh_token"],
            "response_types": ["code"],
            "client_name": "Fernhill",
            "client_uri": "https://app.example/",
            "logo_uri": None,
            "scope": "tools:read tools:web",
            "application_type": "native",
            "contacts": ["ada@app.example"],
            "software_id": "fernhill",
        }
        answer = await auth.authorization.register(given, "192.0.2.1")
        assert (answer.status, answer.headers["Cache-Control"]) == (201, "no-store")
        said = dict(answer.body)
        assert type(said.pop("client_id_issued_at")) is int
        assert len(said.pop("client_id")) >= 20
        assert said == {name: value for name, value in given.items() if value is not None}

    with_auth_server(tmp_path, body)


def test_rg_01_rg_03_what_is_missing_gets_defaults_and_what_is_too_much_is_left_out(tmp_path: Path) -> None:
    async def body(auth: AuthServer) -> None:
        bare = await auth.authorization.register({"redirect_uris": [BACK]}, "192.0.2.1")
        assert bare.body["grant_types"] == ["authorization_code", "refresh_token"]
        assert bare.body["response_types"] == ["code"]
        assert bare.body["token_endpoint_auth_method"] == "client_secret_basic"
        assert len(bare.body["client_secret"]) >= 43
        assert bare.body["client_secret_expires_at"] == 0
        assert type(bare.body["client_secret_expires_at"]) is int
        more = {
            "redirect_uris": [BACK, BACK],
            "token_endpoint_auth_method": "tls_client_auth",
            "grant_types": ["authorization_code", "implicit", "client_credentials", "password", 7],
            "response_types": ["code", "token", None],
            "scope": "tools:web admin tools:read openid",
            "client_uri": "javascript:alert(1)",
            "tos_uri": "http://app.example/",
            "contacts": ["\ud800"],
            "unheard_of": {"a": 1},
            "client_name": "",
            "client_secret": "mine",
            "client_id": "mine",
        }
        answer = await auth.authorization.register(more, "192.0.2.1")
        assert answer.status == 201
        said = {name: value for name, value in answer.body.items() if not name.startswith("client_id")}
        assert said == {
            "redirect_uris": [BACK],
            "token_endpoint_auth_method": "none",
            "grant_types": ["authorization_code"],
            "response_types": ["code"],
            "scope": "tools:read tools:web",
            "client_name": "an unnamed app",
        }
        assert answer.body["client_id"] != "mine"

    with_auth_server(tmp_path, body)


REFUSED_URIS = [
    "javascript:alert(1)",
    "JavaScript:alert(1)",
    "javascript://app.example/%0aalert(1)",
    "data:text/html,x",
    "vbscript:x",
    "file:///etc/passwd",
    "about:blank",
    "blob:https://app.example/x",
    "http://app.example/cb",
    "http://evil.localhost/cb",
    "http://127.0.0.2/cb",
    "http://0.0.0.0/cb",
    "http://localhost.evil.example/cb",
    "http://localhost@evil.example/cb",
    "https://app.example/cb#fragment",
    "https://app.example/cb#",
    "https://u:p@app.example/cb",
    "https://*.app.example/cb",
    "https://app.example/*",
    "https://app.example:0/cb",
    "https://app.example:99999/cb",
    "https://app.example:x/cb",
    "https:///cb",
    "https://",
    "https:app.example/cb",
    "https://app.example/a/../cb",
    "https://app.example/a/%2e%2e/cb",
    "https://app.example/a/%2E./cb",
    "https://app.example/..%2fcb",
    "https://app.example\\@evil.example/cb",
    "https://app.example/%5c..",
    "https://\u0430pp.example/cb",
    "https://app.example/c b",
    "https://app.example/cb\n",
    "https://app.example/cb\0",
    "//app.example/cb",
    "/cb",
    "",
    "com.example.app:cb",
    "com.example.app:",
    "com.example.app:/",
    "com.example.app://",
    "Com.example.app:/cb",
    "com.example.app:/cb#x",
    "com.example.app:/a/../cb",
    "com.example.app://user@host/cb",
    "com.example.app://host:80/cb",
    "c:/cb",
    "localhost:3000/cb",
    "localhost:/cb",
    "filesystem:https://app.example/x",
    "view-source:https://app.example/cb",
    "intent://scan/#Intent;end",
    "intent://app/cb",
    "ms-msdt:/id",
    "search-ms://query/x",
    "x-apple.systempreferences:/x",
    "web+app://callback",
    "chrome-extension://abcdef/cb",
    "urn:ietf:wg:oauth:2.0:oob",
    "mailto:/ada@app.example",
    "cursor://anysphere.cursor-mcp/oauth/callback/..",
    "https://-bad-.example/cb",
    "https://app..example/cb",
    "https://" + "a" * 300 + ".example/cb",
    "https://app.example/" + "a" * 3_000,
    None,
    7,
    [],
    {"a": "b"},
]


@pytest.mark.parametrize("uri", REFUSED_URIS, ids=lambda uri: repr(uri)[:40])
def test_no_code_is_ever_sent_there(tmp_path: Path, uri: Any) -> None:
    """RG-02, SEC-01."""

    async def body(auth: AuthServer) -> None:
        given = {"redirect_uris": [uri], "token_endpoint_auth_method": "none"}
        answer = await auth.authorization.register(given, "192.0.2.1")
        assert (answer.status, answer.body["error"]) == (400, "invalid_redirect_uri")
        assert not uri or str(uri) not in answer.body["error_description"]
        assert await auth.rows("oauth_client") == 0
        for uris in ([BACK, uri], [uri, BACK]):
            answer = await auth.authorization.register({**given, "redirect_uris": uris}, "192.0.2.1")
            assert (answer.status, answer.body["redirect_uris"]) == (201, [BACK])
            told = str(uri) if isinstance(uri, str) and uri else None
            assert isinstance(await auth.asked(answer.body["client_id"], redirect_uri=told), ErrorPage) is bool(told)

    with_auth_server(tmp_path, body)


NATIVE_URIS = [
    "vscode://saoudrizwan.claude-dev/mcp-auth/callback/abc",
    "vscode-insiders://publisher.extension/callback",
    "cursor://saoudrizwan.claude-dev/mcp-auth/callback/abc",
    "claude://claude.ai/mcp-auth-callback/sdk",
    "workbuddy://workbuddy/mcp/connector%3A/oauth/callback",
    "com.example.app:/oauth2redirect",
    "com.example.app:/oauth2redirect?flow=1",
    "com.example.app://callback",
    "com.example.app:///callback",
    "myapp://oauth/callback",
]


@pytest.mark.parametrize("uri", NATIVE_URIS)
def test_an_app_with_a_scheme_of_its_own_registers_and_gets_its_code_there(tmp_path: Path, uri: str) -> None:
    """RFC 8252 section 7.1, by registration and by document."""

    async def body(auth: AuthServer) -> None:
        auth.pages.held[DOCUMENT] = document(redirect_uris=[uri])
        for client in (await auth.client(redirect_uris=[uri]), DOCUMENT):
            question = await auth.asked(client, redirect_uri=uri)
            assert isinstance(question, ConsentRequest) and question.client.loopback_only
            assert question.redirect_host == f"an app on your computer ({uri.partition(':')[0]}:)"
            assert isinstance(await auth.asked(client, redirect_uri=f"{uri}x"), ErrorPage)
            code = await auth.code(client, redirect_uri=uri)
            assert (await auth.redeem(client, code, redirect_uri=uri)).status == 200
            await auth.code(client, redirect_uri=uri)
            again = await auth.asked(client, redirect_uri=uri)
            assert isinstance(again, ConsentRequest)
            assert await auth.authorization.find_remembered_scopes(again.id, ADA) is None

    with_auth_server(tmp_path, body)


QUERIES = [
    "empty=",
    "flag",
    "flag&flag",
    "a=1&a=2&a=1",
    "b=2&a=1",
    "p=/a/b",
    "q=%E9",
    "q=%c3%a9",
    "q=a%20b",
    "q=a+b",
    "s=a;b",
    "u=https://x.example/?y=1",
    "a=1&",
    "&a=1",
    "=",
    "state=mine",
]


@pytest.mark.pairs
@pytest.mark.parametrize("query", QUERIES)
@pytest.mark.parametrize("base", ["https://app.example/cb", "http://127.0.0.1:4000/cb", "com.example.app:/cb"])
def test_a_redirect_uris_query_comes_back_byte_for_byte(tmp_path: Path, base: str, query: str) -> None:
    """RFC 6749 section 3.1.2."""

    async def body(auth: AuthServer) -> None:
        uri = f"{base}?{query}"
        client = await auth.client(redirect_uris=[uri])
        for person, first in ((ADA, "code="), (None, "error=access_denied&")):
            question = await auth.asked(client, redirect_uri=uri, state="s/ é")
            assert isinstance(question, ConsentRequest)
            answered = await auth.authorization.answer_consent(question.id, person, frozenset(question.scopes))
            assert isinstance(answered, Redirect)
            assert answered.location.startswith(f"{uri}&{first}")
            assert answered.location.endswith("&state=s%2F+%C3%A9&iss=https%3A%2F%2Ftools.example")
        wrong = await auth.asked(client, redirect_uri=uri, scope="nothing")
        assert isinstance(wrong, Redirect) and wrong.location.startswith(f"{uri}&error=")

    with_auth_server(tmp_path, body)


def test_an_empty_query_takes_our_parameters(tmp_path: Path) -> None:
    async def body(auth: AuthServer) -> None:
        client = await auth.client(redirect_uris=[f"{BACK}?"])
        question = await auth.asked(client, redirect_uri=f"{BACK}?")
        assert isinstance(question, ConsentRequest)
        answered = await auth.authorization.answer_consent(question.id, ADA, frozenset(question.scopes))
        assert isinstance(answered, Redirect) and answered.location.startswith(f"{BACK}?code=")

    with_auth_server(tmp_path, body)


def nested(depth: int) -> Any:
    value: Any = []
    for _ in range(depth):
        value = [value]
    return value


@pytest.mark.parametrize(
    "given",
    [
        None,
        [],
        "text",
        7,
        {},
        {"redirect_uris": None},
        {"redirect_uris": []},
        {"redirect_uris": BACK},
        {"redirect_uris": {BACK: 1}},
        {"redirect_uris": [f"https://app.example/{number}" for number in range(11)]},
        {"redirect_uris": [BACK], "token_endpoint_auth_method": "private_key_jwt"},
        {"redirect_uris": [BACK], "jwks": {"keys": [{"x": "x" * 20_000}]}},
        {"redirect_uris": [BACK], "jwks": {"keys": [{"x": nested(5_000)}]}},
        {"redirect_uris": [BACK], "jwks": {"keys": [{"x": "\ud800"}]}},
    ],
    ids=range(14),
)
def test_a_body_that_will_not_do_is_refused(tmp_path: Path, given: Any) -> None:
    """RG-02, RG-05, SEC-18."""

    async def body(auth: AuthServer) -> None:
        answer = await auth.authorization.register(given, "192.0.2.1")
        assert answer.status == 400
        assert answer.body["error"] in ("invalid_redirect_uri", "invalid_client_metadata")
        assert await auth.rows("oauth_client") == 0

    with_auth_server(tmp_path, body)


def test_a_name_is_one_line_that_reads_as_it_is_written() -> None:
    """RG-05, SEC-12."""
    assert display_name("  Claude \n\t Code ") == "Claude Code"
    assert display_name("Cl\u200baude\u202e evil\u2066") == "Cl aude evil"
    assert display_name("a\x1b[31m\0b") == "a [31m b"
    assert display_name("x" * 500) == "x" * 79 + "…"
    assert display_name("a" + "\u0f74" * 70 + " x" + "\u0300" * 9) == "a\u0f74\u0f74 x\u0300\u0300"
    assert display_name("\u0301\u0301Claude \u0338x") == "Claude x"
    assert display_name("Clau\u034fde\ufe0f\u180b\U000e0041") == "Claude"
    assert display_name("\u115f\u1160\u3164\uffa0\u2800") == "an unnamed app"
    assert display_name('Claude” to use this server? “"„″＂') == "Claude to use this server?"
    assert display_name("<b>&'") == "<b>&'"  # the page's business
    assert [display_name(name) for name in ("", "  ", None, 7, ["x"], "\ud800")] == ["an unnamed app"] * 6


def test_registering_is_limited_by_address(tmp_path: Path) -> None:
    """RG-05."""
    assert ALL_REGISTRATIONS * LIFETIME / 60 <= MAX_CLIENTS  # who registers has the time to be approved

    async def body(auth: AuthServer) -> None:
        async def statuses(address: str, times: int) -> set[int]:
            given = {"redirect_uris": [BACK]}
            return {(await auth.authorization.register(given, address)).status for _ in range(times)}

        assert await statuses("192.0.2.1", REGISTRATIONS) == {201}
        late = await auth.authorization.register({"redirect_uris": [BACK]}, "192.0.2.1")
        assert (late.status, late.headers["Retry-After"]) == (429, "60")
        assert await statuses("198.51.100.1", 1) == {201}
        auth.clock.now += 60
        assert await statuses("192.0.2.1", 1) == {201}
        same = [await statuses(f"2001:db8::{number:x}:1", 1) for number in range(REGISTRATIONS + 1)]
        assert same == [{201}] * REGISTRATIONS + [{429}]

    with_auth_server(tmp_path, body)


def test_one_block_of_addresses_does_not_keep_others_from_registering(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """RG-05: a /48 has 65,536 networks."""
    monkeypatch.setattr("toolgate.server.auth.oauth_server.service.ALL_REGISTRATIONS", 160)

    async def body(auth: AuthServer) -> None:
        async def is_taken(address: str) -> bool:
            return (await auth.authorization.register({"redirect_uris": [BACK]}, address)).status == 201

        sprayed = [await is_taken(f"2001:db8:bad:{number:x}::1") for number in range(400)]
        assert 0 < sum(sprayed) <= 160 // 8
        assert all([await is_taken(f"198.51.{number}.1") for number in range(20)])

    with_auth_server(tmp_path, body)


def test_malformed_registrations_do_not_count_against_valid_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """RG-05: behind a proxy that isn't trusted, all come from one address."""
    monkeypatch.setattr("toolgate.server.auth.oauth_server.service.MALFORMED", 3)

    async def body(auth: AuthServer) -> None:
        async def status(given: Any) -> int:
            return (await auth.authorization.register(given, "192.0.2.1")).status

        assert [await status({}) for _ in range(5)] == [400] * 3 + [429] * 2
        assert {await status({"redirect_uris": [BACK]}) for _ in range(REGISTRATIONS)} == {201}

    with_auth_server(tmp_path, body)


def test_an_unapproved_client_is_removed_after_a_week_and_an_abandoned_one_later(tmp_path: Path) -> None:
    """RG-05."""

    async def body(auth: AuthServer) -> None:
        unused, used = await auth.client(), await auth.client()
        await auth.granted(used)
        auth.clock.now += UNAPPROVED_LIFETIME + 1
        third = await auth.client()
        assert isinstance(await auth.asked(unused), ErrorPage)
        assert isinstance(await auth.asked(used), ConsentRequest)
        assert isinstance(await auth.asked(third), ConsentRequest)
        auth.clock.now += UNUSED_LIFETIME + 90_000
        await auth.client()
        assert isinstance(await auth.asked(used), ErrorPage)
        assert await auth.rows("oauth_consent") == 0

    with_auth_server(tmp_path, body)


def test_when_there_is_no_room_the_oldest_unapproved_clients_give_way(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """RG-05."""
    monkeypatch.setattr("toolgate.server.auth.oauth_server.endpoints.MAX_CLIENTS", 3)

    async def body(auth: AuthServer) -> None:
        first = await auth.client()
        await auth.code(first)
        for _ in range(5):
            auth.clock.now += 1
            last = await auth.client()
        assert await auth.rows("oauth_client") == 3
        assert isinstance(await auth.asked(first), ConsentRequest)
        assert isinstance(await auth.asked(last), ConsentRequest)
        for id in [known.id for known, _, _ in await auth.authorization.grants.list_clients()]:
            await auth.code(id)
        assert (await auth.authorization.register({"redirect_uris": [BACK]}, "192.0.2.1")).status == 503

    with_auth_server(tmp_path, body)


@pytest.mark.parametrize("registration", ["metadata", "dynamic", "closed"])
def test_an_operator_may_close_registration(tmp_path: Path, registration: str) -> None:
    registers, takes_documents = registration == "dynamic", registration == "metadata"

    async def run() -> None:
        async with auth_server(tmp_path) as before:
            old = await before.client()
            before.pages.held[DOCUMENT] = document()
            tokens = await before.granted(DOCUMENT)
        async with auth_server(tmp_path, registration=registration) as after:
            after.pages.held[DOCUMENT] = document()
            answer = await after.authorization.register({"redirect_uris": [BACK]}, "192.0.2.1")
            assert answer.status == (201 if registers else 403)
            told = await after.authorization.metadata()
            assert ("registration_endpoint" in told) is registers
            assert told["client_id_metadata_document_supported"] is takes_documents
            assert isinstance(await after.asked(old), ConsentRequest if registers else ErrorPage)
            assert isinstance(await after.asked(DOCUMENT), ConsentRequest if takes_documents else ErrorPage)
            assert (await after.refresh(DOCUMENT, tokens["refresh_token"])).status == (200 if takes_documents else 401)
            assert takes_documents or after.pages.asked == []

    asyncio.run(asyncio.wait_for(run(), 20))


def test_a_client_has_ten_keys_at_most(tmp_path: Path) -> None:
    keys = [{"kty": "EC"}] * 11

    async def body(auth: AuthServer) -> None:
        given = {"redirect_uris": [BACK], "token_endpoint_auth_method": "private_key_jwt"}
        answer = await auth.authorization.register({**given, "jwks": {"keys": keys}}, "192.0.2.1")
        assert (answer.status, answer.body["error"]) == (400, "invalid_client_metadata")
        assert (await auth.authorization.register({**given, "jwks": {"keys": keys[1:]}}, "192.0.2.1")).status == 201
        auth.pages.held[DOCUMENT] = document(token_endpoint_auth_method="private_key_jwt", jwks={"keys": keys})
        assert isinstance(await auth.asked(DOCUMENT), ErrorPage)

    with_auth_server(tmp_path, body)


def test_a_private_key_that_came_along_is_not_kept(tmp_path: Path) -> None:
    async def body(auth: AuthServer) -> None:
        key = jose.generate_key()
        kept = await auth.registered(
            token_endpoint_auth_method="private_key_jwt", jwks={"keys": [key.to_private_jwk(), 7]}
        )
        assert kept["jwks"]["keys"] == [key.to_public_jwk()]
        assert "client_secret" not in kept

    with_auth_server(tmp_path, body)


# Metadata documents


def test_rg_06_rg_09_a_metadata_document_makes_a_client_that_its_host_vouches_for(tmp_path: Path) -> None:
    async def body(auth: AuthServer) -> None:
        auth.pages.held[DOCUMENT] = document()
        question = await auth.asked(DOCUMENT)
        assert isinstance(question, ConsentRequest)
        client = question.client
        assert (client.id, client.name, client.kind, client.host) == (DOCUMENT, "Fernhill", "document", "app.example")
        assert not client.loopback_only
        assert auth.pages.limits == [(5 * 1024, 5.0, 0)]
        tokens = await auth.granted(DOCUMENT)
        assert (await auth.refresh(DOCUMENT, tokens["refresh_token"])).status == 200
        loopback = await auth.asked(DOCUMENT, redirect_uri="http://127.0.0.1:5000/callback")
        assert isinstance(loopback, ConsentRequest)
        assert isinstance(await auth.asked(DOCUMENT, redirect_uri="https://evil.example/"), ErrorPage)
        assert len(auth.pages.asked) == 1

    with_auth_server(tmp_path, body)


NO_DOCUMENT_URLS = [
    "http://app.example/client.json",
    "https://app.example",
    "https://app.example/",
    "https://app.example/client.json?a=1",
    "https://app.example/client.json?",
    "https://app.example/client.json#x",
    "https://u@app.example/client.json",
    "https://u:p@app.example/client.json",
    "https://app.example/a/../client.json",
    "https://app.example/./client.json",
    "https://app.example/%2e%2e/client.json",
    "https://app.example/client%2ejson",
    "https://APP.example/client.json",
    "HTTPS://app.example/client.json",
    "https://app.example:0/client.json",
    "https://app.example:70000/client.json",
    "https://app.example\\client.json",
    "https://app.example/client json",
    "https://\u0430pp.example/client.json",
    "https://app.example/" + "a" * 500,
    "ftp://app.example/client.json",
    "//app.example/client.json",
    "https:app.example/client.json",
]


@pytest.mark.parametrize("url", NO_DOCUMENT_URLS, ids=lambda url: url[:40])
def test_a_client_id_that_is_no_plain_url_is_never_fetched(tmp_path: Path, url: str) -> None:
    """RG-06."""

    async def body(auth: AuthServer) -> None:
        auth.pages.held[url] = document(client_id=url)
        assert not is_document_url(url)
        outcome = await auth.asked(url)
        assert isinstance(outcome, ErrorPage) and outcome.error == "invalid_client"
        assert auth.pages.asked == []

    with_auth_server(tmp_path, body)


BAD_DOCUMENTS: dict[str, Any] = {
    "of another client": document(client_id="https://app.example/oauth/client2.json"),
    "with a slash more": document(client_id=DOCUMENT + "/"),
    "of another case": document(client_id=DOCUMENT.replace("app", "APP")),
    "without an id": document(client_id=None),
    "without a name": document(client_name=None),
    "with an empty name": document(client_name=" "),
    "with a number for a name": document(client_name=7),
    "without addresses": document(redirect_uris=None),
    "with no address that can be used": document(redirect_uris=["http://app.example/", "javascript:x"]),
    "with text for addresses": document(redirect_uris=BACK),
    "with a secret": document(client_secret="s"),
    "with a secret's end": document(client_secret_expires_at=0),
    "that proves itself by a secret": document(token_endpoint_auth_method="client_secret_basic"),
    "that signs without keys": document(token_endpoint_auth_method="private_key_jwt"),
    "too large": document(client_uri="https://app.example/" + "a" * 6_000),
    "too large, if only by spaces": json.dumps(document()).encode() + b" " * 6_000,
    "a list": [document()],
    "text": b"hello",
    "nested deep": b"[" * 4_000,
    "of another type": Page(DOCUMENT, 200, {"content-type": "text/html"}, json.dumps(document()).encode(), False),
    "missing": Page(DOCUMENT, 404, {"content-type": "application/json"}, json.dumps(document()).encode(), False),
    "not changed": Page(DOCUMENT, 304, {}, b"", False),
    "unreachable": None,
}


@pytest.mark.parametrize("page", BAD_DOCUMENTS.values(), ids=BAD_DOCUMENTS)
def test_a_document_that_will_not_do_is_shown_and_not_redirected(tmp_path: Path, page: Any) -> None:
    """RG-06."""

    async def body(auth: AuthServer) -> None:
        auth.pages.held[DOCUMENT] = page
        outcome = await auth.asked(DOCUMENT)
        assert isinstance(outcome, ErrorPage)
        assert outcome.error == "invalid_client"
        auth.pages.held[DOCUMENT] = document()
        assert isinstance(await auth.asked(DOCUMENT), ConsentRequest)  # what failed is not remembered

    with_auth_server(tmp_path, body)


def test_a_page_tells_a_document_out_of_reach_from_a_malformed_one_and_no_more(tmp_path: Path) -> None:
    """MCP-04: the page must not reveal which addresses this server can reach."""

    async def body(auth: AuthServer) -> None:
        told: dict[str, str] = {}
        for name in ("unreachable", "missing", "not changed", "of another type", "text", "too large"):
            auth.pages.held[DOCUMENT] = BAD_DOCUMENTS[name]
            outcome = await auth.asked(DOCUMENT)
            assert isinstance(outcome, ErrorPage) and outcome.document == DOCUMENT
            told[name] = outcome.description
        assert told.pop("unreachable") == "the client's metadata document can't be reached from this server"
        assert set(told.values()) == {
            "the client's metadata document is malformed: its URL does not return the expected JSON"
        }

    with_auth_server(tmp_path, body)


class Slow:
    """A fake web with hosts that don't answer until released."""

    def __init__(self, auth: AuthServer, *hosts: str) -> None:
        self.hosts, self.waiting, self.let = hosts, 0, asyncio.Event()
        self._fetch = auth.pages.fetch
        auth.authorization._documents._fetch = self

    async def __call__(self, url: str, **options: Any) -> Page:
        if urlsplit(url).hostname in self.hosts:
            self.waiting += 1
            try:
                await self.let.wait()
            finally:
                self.waiting -= 1
        return await self._fetch(url, **options)


def test_a_slow_host_delays_no_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """RG-06, SEC-18."""
    monkeypatch.setattr("toolgate.server.auth.clients.metadata_documents.WAIT", 0.05)

    async def body(auth: AuthServer) -> None:
        slow = Slow(auth, "slow.example")
        auth.pages.held[DOCUMENT] = document()
        waiting = [asyncio.create_task(auth.asked(f"https://slow.example/{number}")) for number in range(10)]
        await eventually_async(lambda: sum(task.done() for task in waiting) == 8)
        busy = [task.result() for task in waiting if task.done()]
        assert {outcome.status for outcome in busy if isinstance(outcome, ErrorPage)} == {503}
        assert (len(busy), slow.waiting) == (8, 2)
        assert isinstance(await auth.asked(DOCUMENT), ConsentRequest)
        slow.let.set()
        assert all(isinstance(outcome, ErrorPage) for outcome in await asyncio.gather(*waiting))

    with_auth_server(tmp_path, body)


def test_when_all_wait_for_slow_hosts_a_known_client_goes_by_the_document_it_had(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("toolgate.server.auth.clients.metadata_documents.WAIT", 0.05)
    monkeypatch.setattr("toolgate.server.auth.clients.metadata_documents.AT_ONCE", 2)

    async def body(auth: AuthServer) -> None:
        auth.pages.held[DOCUMENT] = document()
        assert isinstance(await auth.asked(DOCUMENT), ConsentRequest)
        Slow(auth, "a.example", "b.example")
        waiting = [asyncio.create_task(auth.asked(f"https://{host}.example/x")) for host in "ab"]
        auth.clock.now += 700
        assert isinstance(await auth.asked(DOCUMENT), ConsentRequest)
        unknown = await auth.asked("https://other.example/x")
        assert isinstance(unknown, ErrorPage) and unknown.status == 503
        for task in waiting:
            task.cancel()

    with_auth_server(tmp_path, body)


def test_one_caller_makes_us_fetch_so_many_new_documents_a_minute(tmp_path: Path) -> None:
    async def body(auth: AuthServer) -> None:
        async def status(number: int, address: str) -> int:
            outcome = await auth.authorization.open_consent(query(f"https://app.example/{number}"), address)
            assert isinstance(outcome, ErrorPage)
            return outcome.status

        auth.pages.held[DOCUMENT] = document()
        assert isinstance(await auth.authorization.open_consent(query(DOCUMENT), "192.0.2.2"), ConsentRequest)
        assert {await status(number, "192.0.2.1") for number in range(NEW)} == {400}
        assert await status(NEW, "192.0.2.1") == 503
        assert await status(NEW, "192.0.2.2") == 400
        form = [("grant_type", "refresh_token"), ("client_id", "https://app.example/x"), ("refresh_token", "x")]
        assert (await auth.authorization.token(form, {}, "192.0.2.1")).status == 503
        assert (await auth.authorization.token(form, {}, "192.0.2.2")).status == 401
        auth.clock.now += 700
        assert {await status(number, "192.0.2.1") for number in range(NEW)} == {400}
        assert isinstance(
            await auth.authorization.open_consent(query(DOCUMENT), "192.0.2.1"), ConsentRequest
        )  # one that is held

    with_auth_server(tmp_path, body)


def test_one_block_of_addresses_does_not_keep_others_documents_from_being_fetched(tmp_path: Path) -> None:
    async def body(auth: AuthServer) -> None:
        async def status(number: int, address: str) -> int:
            outcome = await auth.authorization.open_consent(query(f"https://app.example/{number}"), address)
            assert isinstance(outcome, ErrorPage)
            return outcome.status

        sprayed = [await status(number, f"2001:db8:bad:{number:x}::1") for number in range(2 * ALL_NEW)]
        assert 0 < sprayed.count(400) <= ALL_NEW // 8
        auth.pages.held[DOCUMENT] = document()
        assert isinstance(await auth.authorization.open_consent(query(DOCUMENT), "192.0.2.2"), ConsentRequest)

    with_auth_server(tmp_path, body)


def test_a_refresh_does_not_wait_for_a_document_that_is_overdue(tmp_path: Path) -> None:
    async def body(auth: AuthServer) -> None:
        auth.pages.held[DOCUMENT] = document()
        tokens = await auth.granted(DOCUMENT)
        slow = Slow(auth, "app.example")
        auth.pages.held[DOCUMENT] = document(redirect_uris=["https://app.example/new"])
        auth.clock.now += 700
        again = await auth.refresh(DOCUMENT, tokens["refresh_token"])
        assert again.status == 200
        slow.let.set()
        await eventually_async(lambda: not auth.authorization._documents._under_way)
        assert isinstance(await auth.asked(DOCUMENT), ErrorPage)  # it was fetched meanwhile
        slow.let.clear()
        auth.clock.now += 700
        assert (await auth.refresh(DOCUMENT, again.body["refresh_token"])).status == 200
        await eventually_async(lambda: slow.waiting == 1)
        await auth.authorization.close()
        assert slow.waiting == 0

    with_auth_server(tmp_path, body)


async def eventually_async(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(PATIENCE):
        while not holds():
            await asyncio.sleep(0)


def test_a_document_that_is_gone_for_a_day_holds_no_more(tmp_path: Path) -> None:
    async def body(auth: AuthServer) -> None:
        auth.pages.held[DOCUMENT] = document()
        tokens = await auth.granted(DOCUMENT)
        auth.pages.held.clear()
        auth.clock.now += 7 * 86_400  # nobody has looked for it meanwhile
        answer = await auth.refresh(DOCUMENT, tokens["refresh_token"])
        assert answer.status == 200
        auth.clock.now += 86_399
        answer = await auth.refresh(DOCUMENT, answer.body["refresh_token"])
        assert answer.status == 200
        auth.clock.now += 1
        late = await auth.refresh(DOCUMENT, answer.body["refresh_token"])
        assert (late.status, late.body["error"]) == (401, "invalid_client")
        auth.pages.held[DOCUMENT] = document()
        assert (await auth.refresh(DOCUMENT, answer.body["refresh_token"])).status == 200

    with_auth_server(tmp_path, body)


@pytest.mark.parametrize(
    ("public_url", "allowed"),
    [("https://tools.example", []), ("http://127.0.0.1:8080", ["localhost", "127.0.0.1"]), ("http://10.0.0.1", [])],
)
def test_private_addresses_for_tools_are_not_open_to_clients_documents(public_url: str, allowed: list[str]) -> None:
    """RG-07: with `--allow-private`."""
    named = ("10.0.0.0/8", "intranet", "localhost", "127.0.0.1")
    assert setup.client_fetch_hosts(named, public_url) == allowed


def test_of_a_documents_addresses_those_are_taken_that_can_be_used(tmp_path: Path) -> None:
    async def body(auth: AuthServer) -> None:
        auth.pages.held[DOCUMENT] = document(redirect_uris=["vscode://x/cb", BACK, "http://app.example/", None])
        assert isinstance(await auth.asked(DOCUMENT), ConsentRequest)
        assert isinstance(await auth.asked(DOCUMENT, redirect_uri="http://app.example/"), ErrorPage)

    with_auth_server(tmp_path, body)


@pytest.mark.parametrize(
    ("cache_control", "kept"),
    [
        ("", 600),
        ("max-age=3600", 3_600),
        ("public, Max-Age=120", 120),
        ("max-age=0", 60),
        ("no-store", 60),
        ("no-cache, max-age=9000", 60),
        ("max-age=31536000", 86_400),
        ("s-maxage=5", 600),
        ("max-age=x", 600),
    ],
)
def test_a_document_is_kept_as_long_as_its_server_says_within_bounds(
    tmp_path: Path, cache_control: str, kept: int
) -> None:
    """RG-06."""

    async def body(auth: AuthServer) -> None:
        headers = {"content-type": "application/json; charset=utf-8", "cache-control": cache_control}
        auth.pages.held[DOCUMENT] = Page(DOCUMENT, 200, headers, json.dumps(document()).encode(), False)
        for later, fetched in ((0, 1), (kept - 1, 1), (1, 2)):
            auth.clock.now += later
            assert isinstance(await auth.asked(DOCUMENT), ConsentRequest)
            assert len(auth.pages.asked) == fetched

    with_auth_server(tmp_path, body)


def test_a_document_that_is_gone_ends_new_questions_and_no_refresh(tmp_path: Path) -> None:
    async def body(auth: AuthServer) -> None:
        auth.pages.held[DOCUMENT] = document()
        tokens = await auth.granted(DOCUMENT)
        auth.pages.held.clear()
        auth.clock.now += 700
        assert isinstance(await auth.asked(DOCUMENT), ErrorPage)
        assert (await auth.refresh(DOCUMENT, tokens["refresh_token"])).status == 200

    with_auth_server(tmp_path, body)


def test_a_document_that_changed_is_gone_by_from_then_on(tmp_path: Path) -> None:
    async def body(auth: AuthServer) -> None:
        auth.pages.held[DOCUMENT] = document()
        question = await auth.asked(DOCUMENT)
        assert isinstance(question, ConsentRequest)
        auth.pages.held[DOCUMENT] = document(redirect_uris=["https://app.example/new"])
        auth.clock.now += 599
        assert isinstance(await auth.asked(DOCUMENT), ConsentRequest)
        auth.clock.now += 1
        assert isinstance(await auth.asked(DOCUMENT), ErrorPage)
        assert isinstance(
            await auth.authorization.answer_consent(question.id, ADA, frozenset(question.scopes)),
            ErrorPage,
        )

    with_auth_server(tmp_path, body)


def test_rg_09_an_operator_may_limit_the_hosts_of_documents(tmp_path: Path) -> None:
    async def body(auth: AuthServer) -> None:
        for host, taken in (("app.example", True), ("eu.app.example", True), ("notapp.example", False)):
            url = f"https://{host}/client.json"
            auth.pages.held[url] = document(client_id=url)
            assert isinstance(await auth.asked(url), ConsentRequest if taken else ErrorPage)
        assert len(auth.pages.asked) == 2

    with_auth_server(tmp_path, body, client_hosts=("app.example",))


def test_eight_people_at_once_cost_a_document_one_fetch(tmp_path: Path) -> None:
    async def body(auth: AuthServer) -> None:
        auth.pages.held[DOCUMENT] = document()
        outcomes = await asyncio.gather(*(auth.asked(DOCUMENT) for _ in range(8)))
        assert all(isinstance(outcome, ConsentRequest) for outcome in outcomes)
        assert len(auth.pages.asked) == 1

    with_auth_server(tmp_path, body)


@pytest.mark.parametrize(
    "address",
    [
        "127.0.0.1",
        "10.0.0.1",
        "169.254.169.254",
        "100.64.0.1",
        "192.168.1.1",
        "0.0.0.0",
        "::1",
        "::ffff:127.0.0.1",
        "64:ff9b::7f00:1",
        "2002:7f00:1::",
        "fd00::1",
        "fe80::1",
    ],
)
def test_a_document_on_a_private_address_is_not_fetched(tmp_path: Path, address: str) -> None:
    """RG-07, MCP-04: through the web tools' address check, by name and by number."""

    async def body(auth: AuthServer) -> None:
        async def resolve(_host: str, _port: int) -> list[str]:
            return ["93.184.215.14", address]  # one public answer hides nothing

        web = Web(resolve=resolve)
        auth.pages.fetch = web.fetch  # type: ignore[method-assign]
        auth.authorization._documents._fetch = web.fetch
        literal = f"[{address}]" if ":" in address else address
        try:
            for host in ("app.example", literal):
                outcome = await auth.asked(f"https://{host}/client.json")
                assert isinstance(outcome, ErrorPage)
                assert outcome.error == "invalid_client"
                assert address not in outcome.description
        finally:
            await web.close()
        assert await auth.rows("oauth_client") == 0

    with_auth_server(tmp_path, body)


# Pre-registered clients


def listed(folder: Path, text: str) -> dict[str, OAuthClient]:
    file = folder / "clients.toml"
    file.write_text(text)
    return read_clients(file)


def test_rg_10_an_operator_lists_clients_in_a_file(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("a-long-secret-of-gemini\n")
    found = listed(
        tmp_path,
        """
        [[client]]
        id = "gemini"
        name = "Gemini Enterprise"
        presets = ["gemini-enterprise"]
        secret_file = "secret"
        scope = "tools:read tools:web"

        [[client]]
        id = "chatgpt"
        presets = ["chatgpt"]
        redirect_uris = ["com.example.own:/cb"]

        [[client]]
        id = "nightly"
        grant_types = ["client_credentials"]
        jwks_uri = "https://ci.example/jwks.json"
        """,
    )
    assert found["gemini"] == OAuthClient(
        id="gemini",
        kind="configured",
        name="Gemini Enterprise",
        redirect_uris=("https://vertexaisearch.cloud.google.com/oauth-redirect",),
        method="client_secret_basic",
        scopes=("tools:read", "tools:web"),
        secret=hash_secret("a-long-secret-of-gemini"),
    )
    assert (found["chatgpt"].method, found["chatgpt"].name) == ("none", "chatgpt")
    assert (found["nightly"].method, found["nightly"].grants) == ("private_key_jwt", {"client_credentials"})
    as_json = tmp_path / "clients.json"
    as_json.write_text(json.dumps([{"id": "a", "redirect_uris": [BACK]}]))
    assert list(read_clients(as_json)) == ["a"]


@pytest.mark.parametrize(
    ("row", "named"),
    [
        ('id = "a b"', "id"),
        ('id = "https://app.example/x"', "id"),
        ('id = "p-0"', "id"),
        ("id = 7", "id"),
        ('id = "a"', "redirect_uris"),
        ('id = "a"\nredirect_uris = ["http://app.example/"]', "redirect_uris"),
        ('id = "a"\nredirect_uris = ["javascript:x"]', "redirect_uris"),
        ('id = "a"\nredirect_uris = "x"', "redirect_uris"),
        ('id = "a"\npresets = ["nobody"]', "presets"),
        ('id = "a"\npresets = ["claude"]\nsecret = "short"', "secret"),
        ('id = "a"\npresets = ["claude"]\nsecret_sha256 = "x"', "secret_sha256"),
        ('id = "a"\npresets = ["claude"]\nsecret_file = "nowhere"', "nowhere"),
        ('id = "a"\npresets = ["claude"]\nmethod = "client_secret_basic"', "method"),
        ('id = "a"\npresets = ["claude"]\nmethod = "magic"', "method"),
        ('id = "a"\npresets = ["claude"]\njwks_uri = "http://a.example/"', "jwks_uri"),
        ('id = "a"\npresets = ["claude"]\njwks = {keys = []}', "jwks"),
        ('id = "a"\ngrant_types = ["client_credentials"]', "grant_types"),
        ('id = "a"\npresets = ["claude"]\ngrant_types = ["password"]', "grant_types"),
        ('id = "a"\npresets = ["claude"]\nscope = ["x"]', "scope"),
        ('id = "a"\npresets = ["claude"]\nsecrets = "x"', "secrets"),
        ('id = "a"\npresets = ["claude"]\n[[client]]\nid = "a"\npresets = ["claude"]', "client 2: id"),
    ],
)
def test_a_mistake_in_the_file_is_named_and_no_secret_with_it(tmp_path: Path, row: str, named: str) -> None:
    with pytest.raises(UsageError, match=named) as refusal:
        listed(tmp_path, f"[[client]]\n{row}\n")
    assert str(tmp_path / "clients.toml") in str(refusal.value)
    assert '"short"' not in str(refusal.value)


@pytest.mark.parametrize("content", ["", "x = 1", "[[", "client = 7", "client = [7]"])
def test_a_file_that_is_none_is_named(tmp_path: Path, content: str) -> None:
    with pytest.raises(UsageError, match=r"--clients: .*clients\.toml"):
        listed(tmp_path, content)
    with pytest.raises(UsageError, match="nowhere"):
        read_clients(tmp_path / "nowhere")


def test_a_configured_client_gets_no_more_than_its_scopes(tmp_path: Path) -> None:
    office = OAuthClient("office", "configured", "Office", (BACK,), scopes=("tools:read", "tools:web"))

    async def body(auth: AuthServer) -> None:
        for asked, shown in (
            (None, ("tools:read", "tools:web")),
            ("tools:web tools:shell", ("tools:web",)),
            ("openid offline_access", ("tools:read", "tools:web")),
        ):
            question = await auth.asked("office", scope=asked)
            assert isinstance(question, ConsentRequest)
            assert (question.scopes, question.client.host) == (shown, None)
        assert "invalid_scope" in str(await auth.asked("office", scope="tools:shell"))

    with_auth_server(tmp_path, body, configured_clients={"office": office})


# Presets


PLATFORMS = [
    ("claude", "https://claude.ai/api/mcp/auth_callback"),
    ("claude", "https://claude.com/api/mcp/auth_callback"),
    ("claude-code", "http://localhost:54545/callback"),
    ("claude-code", "http://127.0.0.1:54545/callback"),
    ("chatgpt", "https://chatgpt.com/connector_platform_oauth_redirect"),
    ("chatgpt", "https://chatgpt.com/connector/oauth/AbC_9-x"),
    ("vscode", "http://127.0.0.1:33418/"),
    ("vscode", "http://127.0.0.1:61234/"),
    ("vscode", "https://vscode.dev/redirect"),
    ("vscode", "https://insiders.vscode.dev/redirect"),
    ("cursor", "cursor://anysphere.cursor-mcp/oauth/callback"),
    ("cursor", "https://www.cursor.com/agents/mcp/oauth/callback"),
    ("copilot-studio", "https://global.consent.azure-apim.net/redirect/cr1-2f-x"),
    ("gemini-cli", "http://localhost:7777/oauth/callback"),
    ("gemini-enterprise", "https://vertexaisearch.cloud.google.com/oauth-redirect"),
    ("antigravity", "https://antigravity.google/oauth-callback"),
    ("perplexity", "https://www.perplexity.ai/rest/connections/oauth_callback"),
    ("inspector", "http://localhost:6274/oauth/callback"),
    ("mcp-remote", "http://127.0.0.1:3334/oauth/callback"),
]


@pytest.mark.parametrize(("preset", "uri"), PLATFORMS)
def test_each_known_platform_can_register_and_has_a_preset(tmp_path: Path, preset: str, uri: str) -> None:
    async def body(auth: AuthServer) -> None:
        for client in (await auth.client(redirect_uris=[uri]), "set-up"):
            code = await auth.code(client, redirect_uri=uri)
            assert (await auth.redeem(client, code, redirect_uri=uri)).status == 200

    configured = listed(tmp_path, f'[[client]]\nid = "set-up"\npresets = ["{preset}"]')
    with_auth_server(tmp_path, body, configured_clients=configured)


@pytest.mark.parametrize(
    "uri",
    [
        "https://chatgpt.com/connector/oauth/",
        "https://chatgpt.com/connector/oauth/a/b",
        "https://chatgpt.com/connector/oauth/a?b",
        "https://chatgpt.com/connector/oauth/..",
        "https://chatgpt.com/connector/oauth/%2e%2e",
        "https://chatgpt.com/connector/oauth/a\n",
        "https://chatgpt.com/connector/oauth/{id}",
        "https://chatgpt.com.evil.example/connector/oauth/a",
        "https://chatgpt.com/connector/oauthx",
    ],
)
def test_an_id_in_a_preset_is_one_plain_segment(uri: str) -> None:
    assert not redirect_uris.is_registered(uri, redirect_uris.PRESETS["chatgpt"])


def test_a_client_that_registered_can_not_register_a_pattern(tmp_path: Path) -> None:
    async def body(auth: AuthServer) -> None:
        uri = "https://app.example/{id}"
        answer = await auth.authorization.register({"redirect_uris": [uri]}, "192.0.2.1")
        assert answer.body["error"] == "invalid_redirect_uri"

    with_auth_server(tmp_path, body)

"""Signing in at servers that lie: other issuers and resources, insecure endpoints, huge answers, mixed-up redirects."""

import asyncio
import contextlib
import time
import urllib.parse
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from tests.servers.lying_oauth_server import LyingServer
from toolgate.server.cli.mcp_client.foreign_urls import MAX_URL, PrivateAddressError
from toolgate.server.cli.mcp_client.http import HttpResponse
from toolgate.server.cli.sign_in.client_choice import ChosenClient, choose_client
from toolgate.server.cli.sign_in.discovery import discover
from toolgate.server.cli.sign_in.loopback import LoopbackReceiver
from toolgate.server.cli.sign_in.main import find_opener, login
from toolgate.server.cli.sign_in.requests import (
    MAX_BODY,
    LoginError,
    OAuthAnswer,
    OAuthRequests,
    normalize_url,
    require_secure,
)
from toolgate.server.config import load


def look(server: LyingServer) -> Any:
    return asyncio.run(discover(OAuthRequests(f"{server.url}/mcp"), f"{server.url}/mcp"))


def change(path: str, **values: Any) -> Callable[[LyingServer], None]:
    return lambda server: server.answers[f"/.well-known/{path}"].update(values)


RESOURCE, METADATA = "oauth-protected-resource/mcp", "oauth-authorization-server"


def elsewhere(server: LyingServer) -> None:
    server.challenge = 'Bearer resource_metadata="https://evil.example/metadata"'


def huge(server: LyingServer) -> None:
    server.answers[f"/.well-known/{METADATA}"] = b" " * (MAX_BODY + 1)


def redirected(server: LyingServer) -> None:
    server.answers[f"/.well-known/{RESOURCE}"] = "http://127.0.0.1:1/elsewhere"


def opened(server: LyingServer) -> None:
    server.status = 200


@pytest.mark.parametrize(
    ("lie", "said"),
    [
        (change(METADATA, issuer="https://evil.example"), "are of https://evil.example: refused"),
        (change(METADATA, token_endpoint="http://evil.example/token"), "token_endpoint must be an https URL"),
        (change(METADATA, authorization_endpoint="javascript:alert(1)"), "authorization_endpoint must be an https URL"),
        (change(METADATA, registration_endpoint=7), "registration_endpoint must be an https URL"),
        (change(METADATA, code_challenge_methods_supported=["plain"]), "PKCE with S256"),
        (change(RESOURCE, resource="https://bank.example/mcp"), "calls itself https://bank.example/mcp"),
        (change(RESOURCE, resource=None), "calls itself None"),
        (change(RESOURCE, authorization_servers=["http://evil.example"]), "must be an https URL"),
        (change(RESOURCE, authorization_servers=[]), "names no authorization server"),
        (change(RESOURCE, authorization_servers=["https://e\x1b[2J.example"]), "must be an https URL"),
        (change(METADATA, authorization_endpoint=f"https://a.example/{'x' * MAX_URL}"), "must be an https URL"),
        (change(METADATA, authorization_endpoint="https://a.example/authorize#"), "must be an https URL"),
        (change(METADATA, token_endpoint="https://a.example@evil.example/"), "must be an https URL"),
        (elsewhere, "names metadata of another origin"),
        (huge, "larger than 256 KiB"),
        (redirected, "answers 302 without metadata"),
        (opened, "nobody has to sign in there"),
    ],
)
def test_a_lie_in_the_discovery_ends_it(lying: LyingServer, lie: Callable[[LyingServer], None], said: str) -> None:
    assert look(lying)[1] == ["tools:read"]
    lie(lying)
    with pytest.raises(LoginError) as refused:
        look(lying)
    assert said in str(refused.value) and "\x1b" not in str(refused.value)


def test_an_address_is_checked_and_used_from_one_answer_of_dns(monkeypatch: pytest.MonkeyPatch) -> None:
    answers = {"tools.example": ["8.8.8.8"], "rebinds.example": ["8.8.4.4", "10.0.0.1"], "inside.example": ["10.0.0.1"]}
    used: list[str | None] = []

    async def resolve(_loop: object, host: str, *_: object) -> list[Any]:
        listed = answers[host]
        return [(0, 0, 0, "", (listed.pop(0) if len(listed) > 1 else listed[0], 0))]

    async def no_parts() -> AsyncIterator[bytes]:
        for part in ():
            yield part

    @contextlib.asynccontextmanager
    async def open_response(*_: object, address: str | None) -> AsyncIterator[HttpResponse]:
        used.append(address)
        yield HttpResponse(204, {"content-type": "text/event-stream"}, no_parts())

    monkeypatch.setattr(asyncio.BaseEventLoop, "getaddrinfo", resolve)
    monkeypatch.setattr("toolgate.server.cli.sign_in.requests.open_response", open_response)
    requests = OAuthRequests("https://tools.example/mcp")
    asyncio.run(requests.get("https://rebinds.example/token"))
    assert used == ["8.8.4.4"]
    with pytest.raises(PrivateAddressError, match=r"10\.0\.0\.1 is not a public address"):
        asyncio.run(requests.get("https://inside.example/token"))


def test_a_challenge_beside_another_one_is_read(lying: LyingServer) -> None:
    lying.challenge += '\r\nWWW-Authenticate: Basic realm="far"'
    assert look(lying)[1] == ["tools:read"]


def test_a_huge_challenge_costs_no_time(lying: LyingServer) -> None:
    lying.challenge = f"Bearer {'a' * 60_000}"
    began = time.process_time()
    assert look(lying)[1] == []
    assert time.process_time() - began < 5  # and not the square of its length


def test_a_server_elsewhere_names_nothing_on_this_machine() -> None:
    here = "http://127.0.0.1:631/authorize"
    assert require_secure(here, "it") == require_secure(here, "it", "http://localhost:8080/mcp") == here
    with pytest.raises(LoginError, match="must be an https URL"):
        require_secure(here, "it", "https://tools.example/mcp")


@pytest.mark.parametrize(
    "name",
    ["issuer", "authorization_endpoint", "token_endpoint", "registration_endpoint", "revocation_endpoint"],
)
def test_nor_does_it_in_the_discovery(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    site, here = "https://tools.example", "http://127.0.0.1:631"
    metadata = {
        "issuer": site,
        "authorization_endpoint": f"{site}/authorize",
        "token_endpoint": f"{site}/token",
        "code_challenge_methods_supported": ["S256"],
    }
    issuer = here if name == "issuer" else site
    answers: dict[str, dict[str, Any]] = {
        f"{site}/.well-known/{RESOURCE}": {"resource": f"{site}/mcp", "authorization_servers": [issuer]},
        f"{issuer}/.well-known/{METADATA}": {**metadata, name: here},
    }

    async def send(_requests: OAuthRequests, _method: str, url: str, *_: object) -> OAuthAnswer:
        return OAuthAnswer(200 if url in answers else 401, {}, answers.get(url, {}))

    monkeypatch.setattr(OAuthRequests, "send", send)
    with pytest.raises(LoginError, match="must be an https URL, not 'http://127"):
        asyncio.run(discover(OAuthRequests(f"{site}/mcp"), f"{site}/mcp"))


@pytest.mark.parametrize(
    ("typed", "url"),
    [
        ("tools.example.com", "https://tools.example.com/mcp"),
        ("127.0.0.1:8080", "http://127.0.0.1:8080/mcp"),
        ("https://Tools.example.com/", "https://tools.example.com/mcp"),
        ("https://tools.example.com/a/mcp", "https://tools.example.com/a/mcp"),
    ],
)
def test_an_address_is_completed(typed: str, url: str) -> None:
    assert normalize_url(typed) == url


def test_a_url_is_a_clients_id_where_the_server_takes_one(lying: LyingServer) -> None:
    id = "https://app.example/client.json"
    choose = choose_client(OAuthRequests(lying.url), look(lying)[0], "http://127.0.0.1:1/callback", id, None)
    with pytest.raises(LoginError, match="takes no URL as a client's id: leave out --client https://app"):
        asyncio.run(choose)
    change(METADATA, client_id_metadata_document_supported=True)(lying)
    choose = choose_client(OAuthRequests(lying.url), look(lying)[0], "http://127.0.0.1:1/callback", id, None)
    assert asyncio.run(choose) == ChosenClient(id)
    assert lying.forms == []


# -- the redirect


def received(*queries: str, sends_issuer: bool = True, host: str = "") -> tuple[str | BaseException, list[int]]:
    """Return the code or the error of a receiver that gets these redirects, and the statuses of its pages. STATE stands
    for the right state."""

    async def work() -> tuple[str | BaseException, list[int]]:
        receiver = LoopbackReceiver("https://id.example", sends_issuer=sends_issuer)
        statuses = []
        async with receiver.listen():
            waiting = asyncio.ensure_future(receiver.wait())
            port = urllib.parse.urlsplit(receiver.redirect_uri).port
            for query in queries:
                reader, writer = await asyncio.open_connection("127.0.0.1", port)
                target = query.replace("STATE", receiver.state)
                writer.write(f"GET {target} HTTP/1.1\r\nHost: {host or f'127.0.0.1:{port}'}\r\n\r\n".encode())
                statuses.append(int((await reader.read()).split()[1]))
                writer.close()
            if not waiting.done():
                waiting.cancel()
            return (await asyncio.gather(waiting, return_exceptions=True))[0], statuses

    return asyncio.run(work())


ISS = "iss=https%3A%2F%2Fid.example"


def test_only_the_redirect_of_this_sign_in_counts() -> None:
    right = f"/callback?code=it&state=STATE&{ISS}"
    assert received("/callback?code=no&state=other", "/favicon.ico", "/callback", right) == ("it", [400, 400, 400, 200])
    assert received(f"{right}&code=other", right) == ("it", [400, 200])  # a parameter that comes twice
    ended, statuses = received(right, host="evil.example")
    assert isinstance(ended, asyncio.CancelledError) and statuses == [400]
    assert received("/callback?code=it&state=STATE", sends_issuer=False) == ("it", [200])


@pytest.mark.parametrize(
    ("query", "said"),
    [
        ("/callback?code=it&state=STATE&iss=https%3A%2F%2Fevil.example", "comes from https://evil.example, not from"),
        ("/callback?code=it&state=STATE", "comes from None"),
        (f"/callback?state=STATE&{ISS}", "has no code"),
        (
            f"/callback?error=access_denied&error_description=%1b[2J&state=STATE&{ISS}",
            "refuses: access_denied:  [2J",
        ),
    ],
)
def test_a_redirect_of_another_issuer_or_without_a_code_ends_the_sign_in(query: str, said: str) -> None:
    ended, _ = received(query)
    assert isinstance(ended, LoginError) and said in str(ended)


def test_the_browser_is_led_on_once() -> None:
    async def work() -> list[int]:
        receiver = LoopbackReceiver("https://id.example", sends_issuer=True)
        statuses = []
        async with receiver.listen():
            url = urllib.parse.urlsplit(receiver.lead_to("https://id.example/authorize?state=x"))
            for _ in range(2):
                reader, writer = await asyncio.open_connection("127.0.0.1", url.port)
                writer.write(f"GET {url.path} HTTP/1.1\r\nHost: {url.netloc}\r\n\r\n".encode())
                statuses.append(int((await reader.read()).split()[1]))
                writer.close()
        return statuses

    assert asyncio.run(work()) == [302, 400]


# -- the whole of it


def test_an_open_quote_in_browser_leaves_the_printed_url(lying: LyingServer, tmp_path: Path) -> None:
    assert find_opener(load.load({}, {"HOME": str(tmp_path), "BROWSER": "it's"})) == []


def sign_in(server: LyingServer, folder: Path, capsys: pytest.CaptureFixture[str]) -> tuple[int | str, str]:
    """Sign in at the server without a browser. Return how it ended, and what the terminal shows."""
    config = load.load({}, {"HOME": str(folder)})

    async def work() -> int | str:
        running = asyncio.ensure_future(login(config, url=f"{server.url}/mcp", client=None))
        shown = ""
        while not running.done() and "state=" not in shown:
            await asyncio.sleep(0.01)
            shown += capsys.readouterr().err
        texts.append(shown)
        if "state=" in shown:
            query = dict(urllib.parse.parse_qsl(shown.split("?", 1)[1].split()[0]))
            port = urllib.parse.urlsplit(query["redirect_uri"]).port
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            head = f"GET /callback?code=it&state={query['state']} HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\n\r\n"
            writer.write(head.encode())
            await reader.read()
            writer.close()
        try:
            return await running
        except LoginError as error:
            return str(error)

    texts: list[str] = []
    ended = asyncio.run(work())
    return ended, texts[0] + capsys.readouterr().err


def test_a_person_is_warned_of_a_sign_in_page_elsewhere(
    lying: LyingServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lying.answers["/register"] = {"client_id": "one"}
    change(METADATA, registration_endpoint=f"{lying.url}/register")(lying)
    ended, shown = sign_in(lying, tmp_path, capsys)
    assert ended == 0 and "trust both" not in shown
    change(METADATA, authorization_endpoint="https://honest.example/authorize")(lying)
    ended, shown = sign_in(lying, tmp_path, capsys)
    assert ended == 0 and f"127.0.0.1:{lying.server_port} sends you to honest.example: approve only if" in shown
    lying.answers["/register"] = {"client_id": "one\r\ntwo"}
    lying.answers["/token"] = {"error": "invalid_client"}
    assert "gives no usable client id" in str(sign_in(lying, tmp_path, capsys)[0])

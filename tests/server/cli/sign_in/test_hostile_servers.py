"""Signing in at servers that lie: other issuers and resources, insecure endpoints, huge answers, mixed-up redirects."""

import asyncio
import contextlib
import http.server
import json
import threading
import time
import urllib.parse
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from toolgate.server.cli.mcp_client.foreign_urls import MAX_URL, PrivateAddressError
from toolgate.server.cli.mcp_client.http import HttpResponse, SignInRequiredError
from toolgate.server.cli.sign_in.client_choice import ChosenClient, choose_client
from toolgate.server.cli.sign_in.credentials import MAX_TOKEN, CredentialStore, SignIn, find_token, renew_token
from toolgate.server.cli.sign_in.discovery import discover
from toolgate.server.cli.sign_in.loopback import LoopbackReceiver
from toolgate.server.cli.sign_in.main import find_opener, login, logout
from toolgate.server.cli.sign_in.requests import MAX_BODY, LoginError, OAuthRequests, normalize_url, require_secure
from toolgate.server.config import load
from toolgate.server.protocol.errors import UsageError

TOKENS = {"access_token": "new", "refresh_token": "next", "token_type": "Bearer", "expires_in": 600}


class LyingServer(http.server.ThreadingHTTPServer):
    """An MCP server and its authorization server, whose answers a test can change; `forms` are the token requests."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), LyingHandler)
        self.url = f"http://127.0.0.1:{self.server_port}"
        named = f"{self.url}/.well-known/oauth-protected-resource/mcp"
        self.challenge = f'Bearer resource_metadata="{named}", scope="tools:read"'
        self.status = 401
        self.answers: dict[str, Any] = {
            "/.well-known/oauth-protected-resource/mcp": {
                "resource": f"{self.url}/mcp",
                "authorization_servers": [self.url],
            },
            "/.well-known/oauth-authorization-server": {
                "issuer": self.url,
                "authorization_endpoint": f"{self.url}/authorize",
                "token_endpoint": f"{self.url}/token",
                "code_challenge_methods_supported": ["S256"],
            },
            "/token": TOKENS,
        }
        self.forms: list[dict[str, str]] = []


class LyingHandler(http.server.BaseHTTPRequestHandler):
    server: LyingServer

    def do_GET(self) -> None:
        self._answer(self.server.answers.get(self.path))

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["content-length"])).decode()
        if self.path == "/token":
            self.server.forms.append(dict(urllib.parse.parse_qsl(body)))
            time.sleep(0.05)  # others come meanwhile
            self._answer(self.server.answers["/token"])
            return
        if self.path in self.server.answers:
            self._answer(self.server.answers[self.path])
            return
        self.send_response(self.server.status)
        self.send_header("www-authenticate", self.server.challenge)
        self.send_header("content-length", "0")
        self.end_headers()

    def _answer(self, told: Any) -> None:
        if isinstance(told, str) and told.startswith("http"):
            self.send_response(302)
            self.send_header("location", told)
            told = b""
        else:
            self.send_response(404 if told is None else 400 if isinstance(told, dict) and "error" in told else 200)
        data = told if isinstance(told, bytes) else json.dumps(told).encode()
        self.send_header("content-length", str(len(data)))
        self.end_headers()
        with contextlib.suppress(OSError):  # the client has read enough
            self.wfile.write(data)

    def log_message(self, *_: object) -> None: ...


@pytest.fixture
def lying() -> Iterator[LyingServer]:
    with LyingServer() as server:
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        yield server
        server.shutdown()


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


# -- renewing


def kept(server: LyingServer, folder: Path, **values: Any) -> tuple[Any, CredentialStore, str]:
    """Store a sign-in whose token has expired. Return the options, the store and the server's URL."""
    config = load.load({}, {"HOME": str(folder)})
    store = CredentialStore(config.sign_in_folder)
    known = {"issuer": server.url, "token_endpoint": f"{server.url}/token", "revocation_endpoint": "", "client_id": "c"}
    url = f"{server.url}/mcp"
    tokens = {"access_token": "old", "expires_at": 0.0, "refresh_token": "r"}
    store.write(SignIn(**{"url": url, **known, **tokens, **values}))
    return config, store, url


def test_several_at_once_use_a_refresh_token_once(lying: LyingServer, tmp_path: Path) -> None:
    config, store, url = kept(lying, tmp_path)

    async def work() -> list[str]:
        return [found.text for found in await asyncio.gather(*(find_token(config, url) for _ in range(4)))]

    assert asyncio.run(work()) == ["new"] * 4
    assert [form["refresh_token"] for form in lying.forms] == ["r"]
    assert lying.forms[0]["resource"] == url and lying.forms[0]["client_id"] == "c"
    found = store.read(url)
    assert found is not None and found.refresh_token == "next"


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        ({"error": "invalid_grant"}, "sign in again: toolgate login "),
        ({"error": "temporarily_unavailable"}, "refuses: temporarily_unavailable"),
        ({**TOKENS, "access_token": "a\r\nb"}, "no usable access token"),
        ({**TOKENS, "refresh_token": 7}, "no usable refresh token"),
        ({**TOKENS, "access_token": "a" * 20_000}, "no usable access token"),
        ({**TOKENS, "token_type": "mac"}, "no bearer token"),
        (b"x" * (MAX_BODY + 1), "larger than"),
        ("http://127.0.0.1:1/", "HTTP 302"),
    ],
)
def test_a_bad_answer_of_the_token_endpoint_changes_nothing(
    lying: LyingServer, tmp_path: Path, answer: Any, said: str
) -> None:
    config, store, url = kept(lying, tmp_path)
    lying.answers["/token"] = answer
    with pytest.raises((LoginError, SignInRequiredError)) as refused:
        asyncio.run(find_token(config, url))
    assert said in str(refused.value)
    found = store.read(url)
    assert found is not None and (found.access_token, found.refresh_token) == ("old", "r")


def test_a_refused_token_is_renewed_and_one_without_refresh_asks_to_sign_in_again(
    lying: LyingServer, tmp_path: Path
) -> None:
    config, _, url = kept(lying, tmp_path, expires_at=time.time() + 600)
    found = asyncio.run(find_token(config, url))
    assert (found.text, lying.forms) == ("old", [])
    assert asyncio.run(renew_token(config, found)).text == "new"
    config, _, url = kept(lying, tmp_path, refresh_token="")
    with pytest.raises(SignInRequiredError, match="the access token has expired; sign in again"):
        asyncio.run(find_token(config, url))


def test_a_file_that_others_can_read_or_of_another_key_is_not_used(lying: LyingServer, tmp_path: Path) -> None:
    config, store, url = kept(lying, tmp_path)
    (file,) = config.sign_in_folder.glob("*.sealed")
    file.chmod(0o644)
    with pytest.raises(UsageError, match="can be read by others"):
        store.read(url)
    file.chmod(0o600)
    (config.sign_in_folder / "key").write_bytes(b"k" * 32)
    with pytest.raises(UsageError, match="can't be opened"):
        CredentialStore(config.sign_in_folder).read(url)


@pytest.mark.parametrize("fault", ["shared", "other key", "link", "damaged key"])
def test_signing_out_removes_tokens_that_are_no_longer_used(
    lying: LyingServer, tmp_path: Path, capsys: pytest.CaptureFixture[str], fault: str
) -> None:
    config, store, url = kept(lying, tmp_path, revocation_endpoint=f"{lying.url}/token")
    (file,) = config.sign_in_folder.glob("*.sealed")
    match fault:
        case "shared":
            file.chmod(0o644)
        case "link":
            file.rename(tmp_path / "elsewhere")
            file.symlink_to(tmp_path / "elsewhere")
        case _:
            (config.sign_in_folder / "key").write_bytes(b"k" * (32 if fault == "other key" else 31))
    with pytest.raises((UsageError, OSError)):
        CredentialStore(config.sign_in_folder).read(url)
    assert asyncio.run(logout(config, url=url)) == 0
    assert not store.has(url)
    told = capsys.readouterr()
    assert told.out == f"signed out of {url}\n"
    assert [form["token"] for form in lying.forms] == (["r"] if fault == "shared" else [])
    assert ("end the access on its account page" in told.err) == (fault != "shared")


def test_signing_out_of_a_server_that_is_gone_removes_the_tokens(
    lying: LyingServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config, store, url = kept(lying, tmp_path, revocation_endpoint="http://127.0.0.1:1/revoke")
    assert asyncio.run(logout(config, url=url)) == 0
    assert not store.has(url)
    assert "the server was not told (http://127.0.0.1:1/revoke: " in capsys.readouterr().err


def test_tokens_that_can_not_be_kept_whole_leave_nothing(lying: LyingServer, tmp_path: Path) -> None:
    config, store, url = kept(lying, tmp_path)
    lying.answers["/token"] = {**TOKENS, "access_token": "\\" * MAX_TOKEN, "refresh_token": '"' * MAX_TOKEN}
    assert asyncio.run(find_token(config, url)).text == "\\" * MAX_TOKEN
    found = store.read(url)
    assert found is not None
    names = {file.name for file in config.sign_in_folder.iterdir()}
    with pytest.raises(LoginError, match="more than a sign-in needs"):
        store.write(SignIn(**{**msgspec.structs.asdict(found), "scope": "x " * MAX_BODY}))
    next(config.sign_in_folder.glob("*.sealed")).unlink()
    next(config.sign_in_folder.glob("*.lock")).unlink()
    (config.sign_in_folder / next(name for name in names if name.endswith(".sealed"))).mkdir()
    with pytest.raises(OSError, match="directory"):
        store.write(found)
    assert {file.name for file in config.sign_in_folder.iterdir()} == {n for n in names if not n.endswith(".lock")}


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

"""Behind the real Caddy and nginx, with the shipped files: clients sign in, and no message is lost, late or forged."""

import asyncio
import contextlib
import http.client
import json
import re
import select
import subprocess
import urllib.parse
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from mcp.shared._httpx_utils import create_mcp_http_client

from tests.clients.raw_client import PATIENCE, STATELESS
from tests.clients.raw_http_client import POSTED, Http, Site, events, spoken
from tests.deploy.behind_proxies import QUIET, Served, behind_proxies
from tests.deploy.proxied_server import Front
from tests.deploy.proxies import program
from tests.interop.official_clients import Negotiation
from tests.interop.sign_in_server import SignInServer
from tests.interop.test_oauth_python_sdk import StoredTokens, connected, text

MIB = 2**20
EVIL = "evil.example"  # must never appear

fronts = pytest.mark.parametrize("name", ["caddy", "nginx", "prefix"])


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with behind_proxies(tmp_path_factory.mktemp("proxies")) as made:
        yield made


# -- signing in


@pytest.mark.parametrize("name", ["caddy", "prefix"])
def test_the_official_client_signs_in_and_calls_bash(served: Served, name: str) -> None:
    assert served.said[name] == "in\n"


@pytest.mark.parametrize("name", ["caddy", "prefix"])
def test_cookies_are_of_the_host_alone_and_of_one_path_are_named_so(served: Served, name: str) -> None:
    got = served.fronts[name].window().get("/login")
    assert got.status == 200
    (cookie,) = got.set_cookies
    assert re.match("__Host-toolgate-([0-9a-f]{12}-)form=" if name == "prefix" else "__Host-toolgate-form=", cookie)
    assert cookie.endswith("; Path=/; Max-Age=3600; HttpOnly; SameSite=Lax; Secure")
    base = served.fronts[name].prefix
    assert f'href="{base}/pages.css?' in got.text and f'action="{base}/login"' in got.text


@fronts
def test_a_question_as_long_as_one_may_be_comes_through(served: Served, name: str) -> None:
    front = served.fronts[name]
    client = json.loads(front.ask("POST", "/register", {"redirect_uris": ["http://127.0.0.1/back"]})[1])["client_id"]
    asked = {
        "client_id": client,
        "redirect_uri": "http://127.0.0.1/back",
        "response_type": "code",
        "state": "s" * 3_000,
        "code_challenge": "c" * 43,
        "code_challenge_method": "S256",
    }
    got = front.window().get(f"/authorize?{urllib.parse.urlencode(asked)}")
    assert (got.status, len(got.location) > 3_000) == (303, True)
    assert front.window().get(got.location).status == 200


# -- streams


@pytest.mark.parametrize("name", ["caddy", "nginx", "prefix", "plain"])
@pytest.mark.parametrize("transport", ["http", "sse"])
def test_progress_comes_as_it_is_sent(served: Served, name: str, transport: str) -> None:
    """Also through an nginx with its defaults: HTTP/1.0, and buffers."""
    with spoken(served.fronts[name], transport) as client:
        call = client.begin("tools/call", {"name": "steps", "arguments": {"name": "p", "count": 3}}, progressToken="p")
        for number in range(3):
            client.wait(lambda said, n=number: said.get("params", {}).get("message") == f"step {n}")
            assert client.text("go", {"name": "p"}) == "gone"
        assert client.result(call)["content"][0]["text"] == "all of them"


@pytest.mark.brief("caddy", "plain")
@pytest.mark.parametrize("name", ["caddy", "prefix", "plain"])
def test_the_first_page_is_told_what_happens(served: Served, name: str) -> None:
    front = served.fronts[name]
    window = front.window()
    assert window.sign_in().location == f"{front.prefix}/"
    cookies = "; ".join(f"{cookie}={value}" for cookie, value in window.cookies.items())
    with contextlib.closing(front.connect()) as connection, spoken(front, "http") as client:
        connection.request("GET", "/events", headers={"Cookie": cookies, "Authorization": ""})
        response = connection.getresponse()
        assert (response.status, response.getheader("content-type")) == (200, "text/event-stream")
        assert client.text("TaskManager", {"action": "create", "query": f"seen through {name}"})
        assert any(f"seen through {name}" in event.get("data", "") for event in events(response))


@fronts
def test_a_client_that_disconnects_is_noticed(served: Served, name: str) -> None:
    """A client of 2026-07-28 cancels by closing the connection."""
    with spoken(served.fronts[name], "http", revision=STATELESS) as client:
        call = client.begin(
            "tools/call", {"name": "steps", "arguments": {"name": "h" + name, "count": 1}}, progressToken="p"
        )
        client.wait(lambda said: said.get("method") == "notifications/progress")
        client.notify("notifications/cancelled", {"requestId": call})
        assert client.text("called_off", {"name": "h" + name}) == "called off"


def test_a_quiet_stream_outlasts_the_proxies_timeouts(served: Served) -> None:
    with contextlib.ExitStack() as stack:
        clients = [
            stack.enter_context(spoken(served.fronts[name], transport))
            for name in ("caddy", "impatient")
            for transport in ("http", "sse")
        ]
        silence = {"name": "Bash", "arguments": {"command": f"sleep {QUIET + 2}; echo over"}}
        calls = [(client, client.begin("tools/call", silence)) for client in clients]
        assert [client.result(call)["content"][0]["text"] for client, call in calls] == ["over\n"] * len(clients)


def test_a_stream_without_pings_is_cut(served: Served) -> None:
    """Otherwise the test above would show nothing."""
    response, _, _ = served.fronts["impatient"].ask("GET", "/mute")
    assert response.status == 504


@fronts
def test_a_stream_is_resumed_when_its_connection_and_when_its_proxy_died(served: Served, name: str) -> None:
    front, proxy = served.fronts[name], served.proxies[name]
    with spoken(front, "http") as client:
        assert isinstance(client, Http)
        told = {"mcp-session-id": client.session or "", "mcp-protocol-version": client.revision}
        arguments = {"name": name, "count": 2}
        params = {"name": "steps", "arguments": arguments, "_meta": {"progressToken": "p"}}
        call = {"jsonrpc": "2.0", "id": "steps", "method": "tools/call", "params": params}
        connection = front.connect()
        connection.request("POST", "/mcp", json.dumps(call), {**POSTED, **told})
        event = _with("step 0", events(connection.getresponse()))
        connection.close()
        with _resumed(front, event["id"], told) as coming:
            assert client.text("go", {"name": name}) == "gone"
            event = _with("step 1", coming)
        with _resumed(front, event["id"], told) as coming, contextlib.suppress(OSError, http.client.HTTPException):
            proxy.kill()
            assert not [event for event in coming if event.get("data")]
        proxy.start()
        assert client.text("go", {"name": name}) == "gone"
        with _resumed(front, event["id"], told) as coming:
            assert _with("all of them", coming)


def _with(text: str, coming: Iterator[dict[str, str]]) -> dict[str, str]:
    return next(event for event in coming if text in event.get("data", ""))


@contextlib.contextmanager
def _resumed(front: Front, id: str, told: dict[str, str]) -> Iterator[Iterator[dict[str, str]]]:
    with contextlib.closing(front.connect()) as connection:
        connection.request("GET", "/mcp", headers={"accept": "text/event-stream", "last-event-id": id, **told})
        response = connection.getresponse()
        assert response.status == 200, response.read()
        yield events(response)


def test_the_official_client_goes_on_when_caddy_died_in_the_middle_of_a_call(served: Served) -> None:
    """It reconnects by itself with the id of the last event it saw."""
    front, proxy, kept = served.fronts["caddy"], served.proxies["caddy"], StoredTokens()

    async def main() -> None:
        begun, died = asyncio.Event(), asyncio.Event()

        async def progress(*_: Any) -> None:
            if begun.is_set():
                died.set()
            begun.set()

        async with connected(SignInServer(front, front.person(), ""), kept, Negotiation("http", "legacy")) as client:
            arguments = {"name": "official", "count": 2}
            call = asyncio.create_task(client.call_tool("steps", arguments, progress_callback=progress))
            await begun.wait()
            proxy.kill()
            proxy.start()
            for _ in range(2):
                assert text(await client.call_tool("go", {"name": "official"})) == "gone"
            assert text(await call) == "all of them"
            assert died.is_set()  # the second step was told too

    asyncio.run(main())


# -- bodies


@pytest.mark.pairs
@fronts
@pytest.mark.parametrize("protocol", ["--http1.1", "--http2"])
def test_bodies_of_15_mib_are_taken_and_of_17_refused_by_a_sentence(
    served: Served, name: str, protocol: str, tmp_path: Path
) -> None:
    front = served.fronts[name]
    with spoken(front, "http") as client:
        assert isinstance(client, Http)
        told = ["-H", f"mcp-session-id: {client.session}", "-H", f"mcp-protocol-version: {client.revision}"]
        signed = ["-H", f"authorization: Bearer {front.token}"]
        assert _posted(front, tmp_path, 15, protocol, *told, *signed) == (200, '{"id":1,"result":{},"jsonrpc":"2.0"}')
        assert _posted(front, tmp_path, 17, protocol, *told, *signed) == (
            413,
            "the body has more than 16777216 bytes\n",
        )
        unpacked = ["-H", "transfer-encoding: chunked"] if protocol == "--http1.1" else ["-H", "content-length:"]
        assert _posted(front, tmp_path, 17, protocol, *told, *signed, *unpacked)[0] == 413
        assert _posted(front, tmp_path, 15, protocol, *told, "-H", "authorization: Bearer x")[0] == 401


def _posted(front: Front, folder: Path, mebibytes: int, *options: str) -> tuple[int, str]:
    """Return status and text of the answer to a message of that size, sent by curl with `options`."""
    head, tail = b'{"jsonrpc":"2.0","id":1,"method":"ping","params":{"_meta":{"pad":"', b'"}}}'
    body = folder / "body"
    body.write_bytes(head + b"x" * (mebibytes * MIB - len(head) - len(tail)) + tail)
    words = [program("curl", "curl"), "-sS", "--cacert", str(front.authority), *options]
    words += ["-w", "\n%{http_version} %{http_code}", "--data-binary", f"@{body}"]
    words += [word for line in POSTED.items() for word in ("-H", ": ".join(line))]
    done = subprocess.run([*words, f"{front.url}/mcp"], capture_output=True, text=True, timeout=PATIENCE)
    assert not done.returncode, done.stderr
    said, _, told = done.stdout.rpartition("\n")
    version, status = told.split()
    assert version == ("2" if "--http2" in options else "1.1")
    return int(status), said


@pytest.mark.brief("nginx")
@pytest.mark.parametrize("name", ["caddy", "nginx"])
def test_the_official_client_learns_that_its_token_has_ended_though_it_is_still_sending(
    served: Served, name: str
) -> None:
    """Several times: an answer that did not wait for the body would often be lost behind Caddy."""
    front, body = served.fronts[name], b"x" * (15 * MIB)

    async def main() -> None:
        for _ in range(4):
            async with create_mcp_http_client(headers={"authorization": "Bearer x"}) as client:
                response = await client.post(f"{front.url}/mcp", content=body)
                assert response.status_code == 401
                assert "resource_metadata=" in response.headers["www-authenticate"]

    asyncio.run(main())


# -- forged headers and hosts


FORGED = f"""X-Forwarded-Host: {EVIL}
X-Forwarded-Server: {EVIL}
X-Forwarded-Proto: http
X-Forwarded-Port: 1
X-Forwarded-Prefix: //{EVIL}
X-Forwarded-For: 203.0.113.9
X-Real-IP: 203.0.113.9
Forwarded: for=203.0.113.9;host={EVIL};proto=http
X-Original-Host: {EVIL}
X-Original-URL: https://{EVIL}/
X-Rewrite-URL: https://{EVIL}/"""
PATHS = (
    *("/mcp", "/sse", "/login", "/account", "/logout", "/authorize", "/", "", "/register", "/nothing"),
    *("/.well-known/oauth-protected-resource", "/.well-known/oauth-authorization-server", "/.well-known/nothing"),
    *("/.well-known/oauth-protected-resource/mcp", "/.well-known/oauth-protected-resource/tools/mcp"),
)


@fronts
def test_no_forged_header_or_host_is_ever_shown(served: Served, name: str) -> None:
    front = served.fronts[name]
    here, good = f"localhost:{front.port}", f"Bearer {front.token}"
    for path in PATHS:
        target = front.path(path) or "/"
        for head in (
            f"GET {target} HTTP/1.1\nHost: {here}\n{FORGED}",
            f"GET {target} HTTP/1.1\nHost: {here}\n{FORGED}\nAccept: text/html",
            f"POST {target} HTTP/1.1\nHost: {here}\n{FORGED}\nAuthorization: {good}\nContent-Length: 0",
            f"GET {target} HTTP/1.1\nHost: {EVIL}\nAuthorization: {good}",
            f"GET https://{EVIL}{target} HTTP/1.1\nHost: {here}",
            f"GET https://{here}{target} HTTP/1.1\nHost: {EVIL}",
        ):
            said = front.raw(head).decode(errors="replace").lower()
            assert said.startswith("http/1.1 "), (head, said)
            assert EVIL not in said and "http://" not in said, (head, said)


@fronts
def test_another_host_is_not_served(served: Served, name: str) -> None:
    head = f"GET {served.fronts[name].path('/login')} HTTP/1.1\nHost: {EVIL}"
    assert served.fronts[name].raw(head).startswith(b"HTTP/1.1 421 ")


@fronts
def test_plain_http_is_sent_to_the_name_that_was_configured(served: Served, name: str) -> None:
    front, port = served.fronts[name], served.proxies[name].listening[1]
    with contextlib.closing(http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE)) as connection:
        connection.request("GET", "/login?a=b", headers={"host": EVIL})
        response = connection.getresponse()
        assert EVIL not in str(response.headers) + response.read().decode()
    with contextlib.closing(http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE)) as connection:
        connection.request("GET", "/login?a=b", headers={"host": "localhost"})
        response = connection.getresponse()
        assert response.status == 308
        assert response.headers["location"].replace(f":{front.port}", "") == "https://localhost/login?a=b"


@fronts
def test_browsers_are_told_to_stay_with_https(served: Served, name: str) -> None:
    front = served.fronts[name]
    for path in ("/login", "/nothing"):
        said = (
            front.raw(f"GET {front.path(path)} HTTP/1.1\nHost: localhost:{front.port}").decode(errors="replace").lower()
        )
        assert said.count("\nstrict-transport-security: max-age=31536000\r\n") == 1, said


@pytest.mark.brief("nginx")
@fronts
def test_a_failed_sign_in_is_logged_with_the_address_the_proxy_saw(served: Served, name: str) -> None:
    front = served.fronts[name]
    window = front.window()
    window.headers |= {"x-forwarded-for": "203.0.113.9", "forwarded": "for=203.0.113.9"}
    window.source = f"127.0.0.{2 + list(served.proxies).index(name)}"
    assert window.sign_in(name="nobody").status == 403
    assert f"sign-in refused: from {window.source} by password [" in front.log()
    assert "203.0.113.9" not in front.log()


@pytest.mark.soak
def test_an_idle_connection_is_kept_for_longer_than_proxies_keep_theirs(shared: Site) -> None:
    """Caddy keeps idle connections for two minutes: a request on one that the server just closed would be lost."""
    with shared.socket() as idle:
        for longest in (125, 0):
            idle.sendall(f"GET /health HTTP/1.1\r\nHost: localhost:{shared.port}\r\n\r\n".encode())
            assert idle.recv(65536).startswith(b"HTTP/1.1 200 ")
            assert not select.select([idle], [], [], longest)[0]

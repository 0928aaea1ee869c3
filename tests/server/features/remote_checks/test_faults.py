"""Make each fault that `toolgate doctor --url` must find, and check that it names the fault and the remedy."""

import asyncio
import re
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.clients.raw_http_client import site
from tests.server.cli.commands.test_user_and_client import granted, registered
from tests.server.cli.test_cli import run
from tests.servers.faulty_proxy import (
    PREFIX,
    SOUND,
    Answer,
    Fault,
    Front,
    Headers,
    answered_with,
    answered_without,
    asked_with,
    front,
    instead,
    pages_for,
    respelled,
    slow,
    verdicts,
    without,
)
from tests.servers.reserved_port import kept_port
from tests.tools.api.outbound.test_fetch import certificate
from toolgate.server.cli.doctor.report import run_checks
from toolgate.server.features.remote_checks import calls, checks, target
from toolgate.server.features.remote_checks import connection as reaching


class Walking:
    """A server behind a proxy, a person's token for it, and a run of doctor against it."""

    def __init__(self, proxy: Front, secured: Front, token: str, certificate: Path) -> None:
        self.certificate = certificate
        self.proxy = proxy
        self.secured = secured
        self._token = token

    def to(self, url: str, until: str | None = None) -> int:
        """Run the checks up to `until`."""
        links = list(checks.REMOTE_CHECKS)
        rows = checks.remote_checks(url, self._token)
        return asyncio.run(run_checks(rows[: links.index(until) + 1 if until else None]))


@pytest.fixture(scope="module")
def walking(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Walking]:
    folder = tmp_path_factory.mktemp("walking")
    server, _ = certificate(folder, "localhost")
    with (
        front() as proxy,
        front(proxy, server) as secured,
        site(folder, "--auth", "oauth", "--public-url", proxy.url + PREFIX) as at,
    ):
        proxy.behind = at.port
        run(folder, "user", "add", "ada", "--state", "state", stdin="correct horse")
        yield Walking(proxy, secured, granted(at, registered(at))["access_token"], folder / "server.pem")


@pytest.fixture(autouse=True)
def hurried(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(target, "FIRST_EVENT_TIMEOUT", 0.5)
    monkeypatch.setattr(target, "TIMEOUT", 2.0)
    monkeypatch.setattr(calls, "QUIET_TIME", 0.6)


def moved(_method: str, path: str, _headers: Headers) -> Answer | None:
    return (308, {"location": path + "/"}, b"") if path == f"{PREFIX}/mcp" else None


def unrouted(_method: str, path: str, _headers: Headers) -> Answer | None:
    return None if path.startswith(PREFIX) else (404, {"content-type": "text/html"}, b"no")


def with_null(path: str, answer: Answer) -> Answer:
    status, headers, body = answer
    return (status, headers, body.replace(b"{", b'{"client_uri":null,', 1)) if path.endswith("/register") else answer


def of_old(_path: str, answer: Answer) -> Answer:
    status, headers, body = answer
    return status, headers, body.replace(b'"protocolVersion":"2025-11-25"', b'"protocolVersion":"2024-11-05"')


def undiscovered(_method: str, path: str, _headers: Headers) -> Answer | None:
    is_asked = "oauth-authorization-server" in path or "openid-configuration" in path
    return (404, {"content-type": "text/html"}, b"no") if is_asked else None


def reissued(_path: str, answer: Answer) -> Answer:
    status, headers, body = answer
    return status, headers, re.sub(rb'("issuer":\s*"[^"]*)"', rb'\1/"', body)


LATE = time.strftime("%a, %d %b %Y %H:%M:%S GMT", time.gmtime(time.time() - 7200))
ON_THE_WAY: dict[str, tuple[Fault, str, str]] = {  # the fault → the link that finds it, and what it says
    "slow proxy": (Fault(slow(3)), "no redirect", "no answer in"),
    "redirecting slash": (Fault(moved), "no redirect", "redirects to"),
    "wrong clock": (Fault(answered=answered_with(date=LATE)), "clock", "behind ours"),
    "wrong Host": (Fault(asked_with(host="upstream.internal")), "challenge", "answers 421"),
    "no server behind": (Fault(instead(502)), "challenge", "answers 502"),
    "bot protection": (Fault(instead(403)), "challenge", "answers 403"),
    "rate limit": (Fault(instead(429)), "challenge", "answers 429"),
    "server of before": (Fault(instead(405, method="POST")), "challenge", "answers 405"),
    "path that leads nowhere": (Fault(instead(404, "/mcp")), "challenge", "answers 404"),
    "another site": (Fault(instead(200, page="<h1>welcome</h1>")), "challenge", "no MCP server"),
    "stripped WWW-Authenticate": (Fault(answered=answered_without("www-authenticate")), "challenge", "its 401 has no"),
    "pages for errors": (Fault(answered=pages_for(401)), "errors", "a page of the proxy's own"),
    "stripped Authorization": (Fault(without("authorization")), "made-up token", "Authorization does not arrive"),
    "no well-known documents": (Fault(unrouted), "resource metadata", "oauth-protected-resource"),
    "metadata of another resource": (
        Fault(answered=respelled(b'/mcp"', b'/else"')),
        "resource",
        "it calls itself",
    ),
    "no metadata of the issuer": (Fault(undiscovered), "server metadata", "oauth-authorization-server"),
    "metadata of another issuer": (Fault(answered=reissued), "issuer", "the metadata of"),
    "no PKCE": (Fault(answered=respelled(b'"S256"', b'"plain"')), "abilities", "PKCE"),
    "keys that can't be had": (Fault(instead(404, "/jwks")), "keys", "/jwks answers 404"),
    "stripped CORS headers": (Fault(answered=answered_without("access-control-allow-origin")), "CORS", "web pages"),
    "registration with null": (Fault(answered=with_null), "registration", "is null"),
    "no sign-in page": (Fault(instead(502, "/login")), "sign-in page", "answers 502"),
    "stripped cookies": (Fault(answered=answered_without("set-cookie")), "sign-in page", "the cookie of"),
    "pages for errors of OAuth": (Fault(answered=pages_for(400, 401, where="/token")), "token endpoint", "belongs"),
    "stripped Mcp-Session-Id of answers": (
        Fault(answered=answered_without("mcp-session-id")),
        "session",
        "has lost its",
    ),
    "stripped Mcp-Session-Id": (Fault(without("mcp-session-id")), "session", "Mcp-Session-Id does not arrive"),
    "changed Mcp-Session-Id": (Fault(asked_with(mcp_session_id="another")), "session", "not known when it comes back"),
    "stripped MCP-Protocol-Version": (
        Fault(without("mcp-protocol-version")),
        "protocol version",
        "MCP-Protocol-Version does not arrive",
    ),
    "stripped Mcp-Method": (Fault(without("mcp-method")), "newest revision", "a header does not arrive"),
    "body limit": (Fault(most=2**20), "large message", "too large for the proxy"),
    "buffering": (Fault(held="head"), "event streams", "held back by a buffer"),
    "buffering of bodies": (Fault(held="body"), "event streams", "held back by a buffer"),
    "compression": (Fault(answered=answered_with(content_encoding="gzip")), "event streams", "they are compressed"),
    "impatience": (Fault(patience=0.2), "quiet stream", "a quiet stream is cut"),
    "DELETE refused": (Fault(instead(403, method="DELETE")), "session's end", "DELETE is answered"),
}
NOTED: dict[str, tuple[Fault, str, str]] = {
    "HTTP/1.0": (Fault(version="HTTP/1.0"), "HTTP version", "it answers in HTTP/1.0"),
    "old server": (Fault(answered=of_old), "first call", "an old server answers"),
}


def test_a_proxy_without_a_fault_has_none_found(walking: Walking, capsys: pytest.CaptureFixture[str]) -> None:
    walking.proxy.fault = SOUND
    assert walking.to(f"{walking.proxy.url}{PREFIX}/mcp") == 0, capsys.readouterr().out
    found = verdicts(capsys.readouterr().out)
    assert found == dict.fromkeys(checks.REMOTE_CHECKS, "ok") | {"server": "note"} | dict.fromkeys(
        ("TLS", "https alone", "clean-up"), "skip"
    )


@pytest.mark.parametrize(("fault", "link", "said"), ON_THE_WAY.values(), ids=ON_THE_WAY)
def test_a_fault_on_the_way_is_found_first_and_named(
    walking: Walking, capsys: pytest.CaptureFixture[str], fault: Fault, link: str, said: str
) -> None:
    walking.proxy.fault = fault
    assert walking.to(f"{walking.proxy.url}{PREFIX}/mcp", until=link) == 1
    told = capsys.readouterr().out
    failed = [name for name, verdict in verdicts(told).items() if verdict == "FAIL"]
    assert failed == [link], told
    assert said in told[told.index(f"FAIL  {link}") :].splitlines()[0], told


@pytest.mark.parametrize(("fault", "link", "said"), NOTED.values(), ids=NOTED)
def test_what_works_but_could_be_better_is_noted(
    walking: Walking, capsys: pytest.CaptureFixture[str], fault: Fault, link: str, said: str
) -> None:
    walking.proxy.fault = fault
    assert walking.to(f"{walking.proxy.url}{PREFIX}/mcp", until=link) == 0
    told = capsys.readouterr().out
    assert verdicts(told)[link] == "note" and said in told[told.index(f"note  {link}") :].splitlines()[0], told


ELSEWHERE = {  # what is asked for → the link that finds it, and what it says; {} is the proxy, with TLS or without
    "wrong public URL": ("http://localhost:{port}/tools/mcp", "resource metadata", "of another origin"),
    "slash at the end": ("{url}/mcp/", "resource", "remove the slash"),
    "metadata as http": ("{secured}/mcp", "resource metadata", "is an http URL"),
    "name that nobody has": ("https://nowhere.invalid/mcp", "name", "has no address"),
    "reserved address": ("https://192.0.2.1/mcp", "name", "every DNS record of this name must be one"),
    "https of an http port": ("https://127.0.0.1:{port}/tools/mcp", "TLS", "that port speaks http, not https"),
    "closed port": ("http://127.0.0.1:{closed}/mcp", "connection", "start the server"),
}


@pytest.mark.parametrize(("url", "link", "said"), ELSEWHERE.values(), ids=ELSEWHERE)
def test_a_url_that_is_not_the_servers_is_named(
    walking: Walking,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    url: str,
    link: str,
    said: str,
) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", str(walking.certificate))
    walking.proxy.fault = SOUND
    where = url.format(
        url=walking.proxy.url + PREFIX,
        secured=walking.secured.url.replace("127.0.0.1", "localhost") + PREFIX,
        port=walking.proxy.url.rpartition(":")[2],
        closed=kept_port(),
    )
    assert walking.to(where, until=link) == 1
    told = capsys.readouterr().out
    assert [name for name, verdict in verdicts(told).items() if verdict == "FAIL"] == [link], told
    assert said in told[told.index(f"FAIL  {link}") :], told


def test_a_server_that_is_reached_in_the_clear_too_is_named(
    walking: Walking, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    clear, port = (int(each.url.rpartition(":")[2]) for each in (walking.proxy, walking.secured))
    monkeypatch.setenv("SSL_CERT_FILE", str(walking.certificate))
    monkeypatch.setattr(reaching, "HTTP_PORT", clear)
    monkeypatch.setattr(reaching, "HTTPS_PORT", port)
    url = f"https://localhost:{port}{PREFIX}/mcp"
    walking.proxy.fault = SOUND
    assert walking.to(url, until="https alone") == 1
    assert "serves MCP too: tokens may go in the clear" in capsys.readouterr().out
    walking.proxy.fault = Fault(instead(301))
    assert walking.to(url, until="https alone") == 0
    assert "note  https alone" in capsys.readouterr().out


EVERY = {
    **{name: (link, said) for name, (_, link, said) in {**ON_THE_WAY, **NOTED}.items()},
    **{name: (link, said) for name, (_, link, said) in ELSEWHERE.items()},
}

"""`toolgate doctor`: this machine, and the way to a server, with a link broken at a time."""

import contextlib
import http.server
import os
import re
import socket
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.http_wire import site
from tests.test_cli import run
from tests.test_cli_people import granted, registered

Change = Callable[[str, int, dict[str, str], bytes], tuple[int, dict[str, str], bytes]]
LINKS = [
    "name",
    "TLS",
    "no redirect",
    "challenge",
    "resource metadata",
    "resource",
    "server metadata",
    "issuer",
    "abilities",
    "CORS",
    "registration",
    "sign-in page",
    "token endpoint",
    "clean-up",
    "first call",
]


def verdicts(told: str) -> dict[str, str]:
    """Name → ok, FAIL or skip."""
    return {line[6:24].strip(): line[:4].strip() for line in told.splitlines() if re.match("ok  |FAIL|skip", line)}


def test_a_machine_that_is_well_fails_nothing(tmp_path: Path) -> None:
    (tmp_path / "plugins").mkdir()
    (tmp_path / "plugins" / "good.py").write_text("from toolgate.tools import tool\n@tool\ndef hi() -> str:\n 'Hi.'\n")
    told = run(tmp_path, "doctor", "-t", "--port", "0", "-p", "plugins")
    assert told.returncode == 0, told.stdout
    found = verdicts(told.stdout)
    assert found["plugins"] == found["port"] == found["state folder"] == "ok" and "FAIL" not in found.values()
    assert not (tmp_path / ".local").exists(), "it looks, and makes nothing"


def test_each_fault_of_a_machine_is_named_with_what_to_do(tmp_path: Path) -> None:
    (tmp_path / "state").mkdir()
    (tmp_path / "state").chmod(0o755)
    (tmp_path / "plugins").mkdir()
    (tmp_path / "plugins" / "bad.py").write_text("import nothing_there\n")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        told = run(tmp_path, "doctor", "-t", "--port", port, "--state", "state", "-p", "plugins", "--login", "github")
    assert told.returncode == 1
    found = verdicts(told.stdout)
    assert [name for name, verdict in found.items() if verdict == "FAIL"] == [
        "options",
        "state folder",
        "plugins",
        "port",
    ]
    assert "nothing_there" in told.stdout and "bad.py" in told.stdout and "--login" in told.stdout
    assert told.stdout.splitlines()[-1].startswith("the first thing to mend is options")


def test_a_damaged_database_and_one_of_the_future_are_named(tmp_path: Path) -> None:
    run(tmp_path, "user", "add", "ada", "--state", "state", stdin="correct horse")
    database = tmp_path / "state" / "state.db"
    os.utime(database, (time.time() + 86_400,) * 2)
    told = run(tmp_path, "doctor", "--state", "state")
    assert verdicts(told.stdout)["clock"] == "FAIL" and verdicts(told.stdout)["state database"] == "ok"
    for file in (tmp_path / "state").glob("state.db-*"):
        file.unlink()
    database.write_bytes(b"not a database at all, but long enough to be one" * 100)
    told = run(tmp_path, "doctor", "--state", "state")
    assert told.returncode == 1 and verdicts(told.stdout)["state database"] == "FAIL"


def test_the_whole_way_to_a_server_is_walked_and_nothing_stays(tmp_path: Path) -> None:
    with site(tmp_path, "--auth", "oauth") as at:
        run(tmp_path, "user", "add", "ada", "--state", "state", stdin="correct horse")
        token = granted(at, registered(at))["access_token"]
        told = run(tmp_path, "doctor", "--url", f"{at.url}/mcp", "--state", "state", TOOLGATE_TOKEN=token)
        assert told.returncode == 0, told.stdout
        assert verdicts(told.stdout) == {**dict.fromkeys(LINKS, "ok"), "TLS": "skip"}
        assert token not in told.stdout + told.stderr
        assert "toolgate doctor" not in run(tmp_path, "client", "list", "--state", "state").stdout
        short = run(tmp_path, "doctor", "--url", at.url, "--state", "state")
        assert verdicts(short.stdout)["resource"] == "ok" and verdicts(short.stdout)["first call"] == "skip"
        wrong = run(tmp_path, "doctor", "--url", at.url, "--state", "state", TOOLGATE_TOKEN="made-up")
        assert (wrong.returncode, verdicts(wrong.stdout)["first call"]) == (1, "FAIL")
        assert "made-up" not in wrong.stdout + wrong.stderr


def test_a_server_without_sign_in_and_one_that_is_not_there_are_told(tmp_path: Path) -> None:
    with site(tmp_path) as at:
        told = run(tmp_path, "doctor", "--url", f"{at.url}/mcp")
        assert told.returncode == 1 and verdicts(told.stdout)["challenge"] == "FAIL"
        assert "--auth oauth" in told.stdout.splitlines()[-1]
    gone = run(tmp_path, "doctor", "--url", f"{at.url}/mcp")
    assert gone.returncode == 1 and "the first thing to mend is no redirect: start the server" in gone.stdout
    insecure = run(tmp_path, "doctor", "--url", "http://192.0.2.1/mcp", "--state", "state")
    assert verdicts(insecure.stdout)["name"] == "FAIL"
    assert run(tmp_path, "doctor", "--url", "nonsense").returncode == 2


def moved(path: str, status: int, headers: dict[str, str], body: bytes) -> tuple[int, dict[str, str], bytes]:
    return (307, {**headers, "Location": "/mcp/"}, b"") if path == "/mcp" else (status, headers, body)


def unchallenged(path: str, status: int, headers: dict[str, str], body: bytes) -> tuple[int, dict[str, str], bytes]:
    return status, {name: value for name, value in headers.items() if name.lower() != "www-authenticate"}, body


def of_another_host(path: str, status: int, headers: dict[str, str], body: bytes) -> tuple[int, dict[str, str], bytes]:
    return (421, headers, body) if path.startswith("/mcp") else (status, headers, body)


def unrouted(path: str, status: int, headers: dict[str, str], body: bytes) -> tuple[int, dict[str, str], bytes]:
    return (404, headers, b"no") if "oauth-protected-resource" in path else (status, headers, body)


def renamed(path: str, status: int, headers: dict[str, str], body: bytes) -> tuple[int, dict[str, str], bytes]:
    return status, headers, re.sub(rb'("resource":\s*"[^"]*)/mcp"', rb'\1/mcp/"', body)


def reissued(path: str, status: int, headers: dict[str, str], body: bytes) -> tuple[int, dict[str, str], bytes]:
    return status, headers, re.sub(rb'("issuer":\s*"[^"]*)"', rb'\1/"', body)


def without_pkce(path: str, status: int, headers: dict[str, str], body: bytes) -> tuple[int, dict[str, str], bytes]:
    return status, headers, body.replace(b'"S256"', b'"plain"')


def unshared(path: str, status: int, headers: dict[str, str], body: bytes) -> tuple[int, dict[str, str], bytes]:
    return status, {name: value for name, value in headers.items() if "allow-origin" not in name.lower()}, body


def with_null(path: str, status: int, headers: dict[str, str], body: bytes) -> tuple[int, dict[str, str], bytes]:
    return status, headers, body.replace(b"{", b'{"client_uri":null,', 1) if path == "/register" else body


def without_pages(path: str, status: int, headers: dict[str, str], body: bytes) -> tuple[int, dict[str, str], bytes]:
    return (502, headers, b"bad gateway") if path.startswith(("/login", "/consent")) else (status, headers, body)


def forgetful(path: str, status: int, headers: dict[str, str], body: bytes) -> tuple[int, dict[str, str], bytes]:
    return (500, headers, b"oops") if path == "/token" and status >= 400 else (status, headers, body)


@pytest.mark.parametrize(
    ("change", "link", "remedy"),
    [
        (moved, "no redirect", "proxy"),
        (unchallenged, "challenge", "proxy"),
        (of_another_host, "challenge", "--allowed-hosts"),
        (unrouted, "resource metadata", "route"),
        (renamed, "resource", "--public-url"),
        (reissued, "issuer", "--public-url"),
        (without_pkce, "abilities", "--auth"),
        (unshared, "CORS", "Access-Control-Allow-Origin"),
        (with_null, "registration", "left out"),
        (without_pages, "sign-in page", "proxy"),
        (forgetful, "token endpoint", "proxy"),
    ],
)
def test_the_broken_link_is_named_first_with_what_to_do(tmp_path: Path, change: Change, link: str, remedy: str) -> None:
    with proxy(change) as (front, lead), site(tmp_path, "--auth", "oauth", "--public-url", front) as at:
        lead(at.url)
        told = run(tmp_path, "doctor", "--url", f"{front}/mcp", "--state", "state")
    assert told.returncode == 1
    assert next(name for name, verdict in verdicts(told.stdout).items() if verdict == "FAIL") == link, told.stdout
    assert f"the first thing to mend is {link}: " in told.stdout and remedy in told.stdout.splitlines()[-1]


@contextlib.contextmanager
def proxy(change: Change) -> Iterator[tuple[str, Callable[[str], None]]]:
    """A proxy on a free port that changes answers: its URL, and what says where it leads to."""
    behind: list[str] = []

    class Front(http.server.BaseHTTPRequestHandler):
        def pass_on(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            request = urllib.request.Request(behind[0] + self.path, body or None, method=self.command)
            for name, value in self.headers.items():
                request.add_header(name, value)
            try:
                answer = urllib.request.build_opener(Still).open(request, timeout=20)
            except urllib.error.HTTPError as error:
                answer = error
            with answer:
                given = {name: value for name, value in answer.headers.items() if name.lower() in KEPT}
                status, headers, content = change(self.path, answer.status, given, answer.read())
            self.send_response(status)
            for name, value in headers.items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        do_GET = do_POST = do_DELETE = do_OPTIONS = pass_on

        def log_message(self, *_: object) -> None: ...

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Front)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}", behind.append
    finally:
        server.shutdown()
        server.server_close()
        thread.join(20)


class Still(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *_: object) -> None:
        return None


KEPT = ("content-type", "www-authenticate", "location", "access-control-allow-origin", "set-cookie", "mcp-session-id")

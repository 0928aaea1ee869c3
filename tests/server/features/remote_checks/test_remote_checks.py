"""`toolgate doctor --url` on the way to a server, with one broken part at a time."""

import asyncio
import contextlib
import datetime
import http.server
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.clients.raw_http_client import site
from tests.server.cli.commands.test_user_and_client import granted, registered
from tests.server.cli.test_cli import run
from tests.servers.faulty_proxy import listening, verdicts
from tests.tools.api.outbound.test_fetch import certificate
from toolgate.server.base.errors import UsageError
from toolgate.server.cli.doctor.report import CheckError
from toolgate.server.cli.mcp_client.http import bearer_headers
from toolgate.server.config import load
from toolgate.server.features.remote_checks import commands
from toolgate.server.features.remote_checks.target import HttpProbe

METHODS = "token_endpoint_auth_methods_supported"
BY_DOCUMENT = {"client_id_metadata_document_supported": True}


def test_a_token_comes_from_the_environment_and_is_never_told(tmp_path: Path) -> None:
    with site(tmp_path, "--auth", "oauth") as at:
        run(tmp_path, "user", "add", "ada", "--state", "state", stdin="correct horse")
        token = granted(at, registered(at))["access_token"]
        listed = run(tmp_path, "tools", "--url", f"{at.url}/mcp")
        assert (
            listed.returncode == 1
            and "Not signed in. Run `toolgate login " in listed.stderr
            and "TOOLGATE_TOKEN" in listed.stderr
        )
        called = run(tmp_path, "call", "Bash", "command=echo hi", "--url", f"{at.url}/mcp", TOOLGATE_TOKEN=token)
        assert (called.returncode, called.stdout) == (0, "hi\n"), called.stderr
        short = run(tmp_path, "doctor", "--url", at.url, "--state", "state")
        assert verdicts(short.stdout)["resource"] == "ok" and verdicts(short.stdout)["first call"] == "skip"
        wrong = run(tmp_path, "doctor", "--url", at.url, "--state", "state", TOOLGATE_TOKEN="nobody-made-it")
        assert (wrong.returncode, verdicts(wrong.stdout)["first call"]) == (1, "FAIL")
        assert "nobody-made-it" not in wrong.stdout + wrong.stderr


def test_a_server_without_sign_in_and_one_that_is_not_there_are_told(tmp_path: Path) -> None:
    with site(tmp_path) as at:
        told = run(tmp_path, "doctor", "--url", f"{at.url}/mcp")
        assert told.returncode == 1 and verdicts(told.stdout)["challenge"] == "FAIL"
        assert "--auth oauth" in told.stdout.splitlines()[-1]
    programs = json.loads(run(tmp_path, "doctor", "--json", "--url", f"{at.url}/mcp").stdout)
    assert (programs["ok"], programs["first"], programs["url"]) == (False, "connection", f"{at.url}/mcp")
    assert {check["verdict"] for check in programs["checks"]} == {"ok", "FAIL", "skip"}
    gone = run(tmp_path, "doctor", "--url", f"{at.url}/mcp")
    assert gone.returncode == 1 and "Fix this first: connection: start the server" in gone.stdout
    insecure = run(tmp_path, "doctor", "--url", "http://192.0.2.1/mcp", "--state", "state")
    assert verdicts(insecure.stdout)["name"] == "FAIL"
    assert run(tmp_path, "doctor", "--url", "nonsense").returncode == 2


def walked(url: str, capsys: pytest.CaptureFixture[str], **environment: str) -> str:
    """Return the report on the way to `url`."""
    asyncio.run(commands.check_server(load.load({}, environment), url=url, json=False))
    return capsys.readouterr().out


HOUR = datetime.timedelta(hours=1)


@pytest.mark.parametrize(
    ("name", "left", "verdict", "said"),
    [
        ("localhost", 6 * HOUR, "note", ["it ends in 6 hours", "renew it"]),  # of 30
        ("localhost", 12 * HOUR, "ok", ["verified"]),  # of 36: a proxy renews it by itself
        ("localhost", 13 * 24 * HOUR, "ok", ["verified"]),  # of 14 days, as short ones of ACME
        (
            "shop.example",
            24 * HOUR,
            "FAIL",
            ["mismatch", "Fix this first: TLS: have the proxy serve a certificate for localhost"],
        ),
        ("localhost", -HOUR, "FAIL", ["expired", "Fix this first: TLS: renew"]),
    ],
    ids=["about to end", "short", "of two weeks", "of another name", "expired"],
)
def test_a_certificate_that_does_not_hold_is_named_with_what_to_do(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    name: str,
    left: datetime.timedelta,
    verdict: str,
    said: list[str],
) -> None:
    server, _ = certificate(tmp_path, name, left)
    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "server.pem"))
    with listening(http.server.BaseHTTPRequestHandler, server) as url:
        told = walked(f"{url.replace('127.0.0.1', 'localhost')}/mcp", capsys)
    assert verdicts(told)["connection"] == "ok" and verdicts(told)["TLS"] == verdict
    assert all(each in told for each in said), told


@pytest.mark.parametrize(
    ("metadata", "link", "said"),
    [
        ({"lost": "yes"}, "server metadata", "route /.well-known/oauth-authorization-server of http://127.0.0.1"),
        ({"issuer": "https://login.example"}, "issuer", "--auth"),
        ({**BY_DOCUMENT, "registration_endpoint": None}, "abilities", "none"),
        ({**BY_DOCUMENT, "registration_endpoint": None, METHODS: ["client_secret_post"]}, "abilities", "none"),
    ],
    ids=["missing", "of another issuer", "documents, and no methods", "documents, and secrets alone"],
)
def test_metadata_that_clients_can_not_use_is_named_with_what_to_do(
    metadata: dict[str, Any], link: str, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with liar({}, **metadata) as (url, _):
        told = walked(f"{url}/mcp", capsys)
    assert next(name for name, verdict in verdicts(told).items() if verdict == "FAIL") == link, told
    assert said in told[told.index(f"FAIL  {link}") :], told


def test_clients_without_a_secret_that_may_register_only_are_told_of(capsys: pytest.CaptureFixture[str]) -> None:
    with liar({}, **BY_DOCUMENT) as (url, _):
        told = walked(f"{url}/mcp", capsys)
    assert verdicts(told)["abilities"] == "ok" and "claude.ai comes by registration alone" in told
    with liar({}, **BY_DOCUMENT, **{METHODS: ["none"]}) as (url, _):
        told = walked(f"{url}/mcp", capsys)
    assert verdicts(told)["abilities"] == "ok" and "claude.ai" not in told


def test_what_a_server_says_removes_nothing_here(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    state = str(tmp_path / "state")
    added = run(tmp_path, "client", "add", "Fern", "http://127.0.0.1:5000/back", "--state", state).stdout
    id = added.split()[-1]
    with liar({"client_id": id}) as (url, _):
        told = walked(f"{url}/mcp", capsys, TOOLGATE_STATE=state)
    assert verdicts(told)["registration"] == "ok" and verdicts(told)["clean-up"] == "skip"
    assert id in run(tmp_path, "client", "list", "--state", state).stdout


def test_a_client_is_removed_where_it_was_registered_and_nowhere_else(capsys: pytest.CaptureFixture[str]) -> None:
    with liar({}) as (other, heard):
        with liar({"registration_client_uri": f"{other}/x", "registration_access_token": "k"}) as (url, _):
            assert verdicts(walked(f"{url}/mcp", capsys))["clean-up"] == "skip"
        assert heard == []
    with liar({"registration_client_uri": "/register/x", "registration_access_token": "k"}) as (url, heard):
        assert verdicts(walked(f"{url}/mcp", capsys))["clean-up"] == "ok"
    assert ("DELETE", "/register/x", "Bearer k") in heard


def test_a_token_goes_to_the_resource_it_is_for_alone_and_never_in_the_clear(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with liar({}, resource="https://else.example/mcp") as (url, heard):
        told = walked(f"{url}/mcp", capsys, TOOLGATE_TOKEN="nobody-made-it")
    assert verdicts(told)["resource"] == "FAIL" and "first call" not in verdicts(told)
    assert not any("nobody-made-it" in authorization for _, _, authorization in heard)
    for clear in ("http://192.0.2.1/mcp", "http://localhost.example/mcp"):
        with pytest.raises(UsageError, match="https"):
            bearer_headers("nobody-made-it", clear)
    assert (
        bearer_headers("t", "https://a.example")
        == bearer_headers("t", "http://[::1]:8/mcp")
        == {"Authorization": "Bearer t"}
    )


def test_a_remote_server_can_direct_no_request_to_private_addresses() -> None:
    wire = HttpProbe("https://tools.example.com/mcp")
    with liar({}) as (url, heard):
        for inside in (url, url.replace("http:", "https:"), "https://10.0.0.1/", "https://[::1]/", "http://8.8.8.8/"):
            with pytest.raises(CheckError):
                asyncio.run(wire.send("GET", inside, {}))
        assert heard == []


@contextlib.contextmanager
def liar(
    registration: dict[str, str], resource: str = "", lost: str = "", **metadata: Any
) -> Iterator[tuple[str, list[tuple[str, str, str]]]]:
    """Run a server with arbitrary answers; yield its URL, and the method, path and Authorization of each request. A
    path in its registration answer gets its own origin. `metadata` is added to the authorization server's, None removes
    a member; `lost`: it has none."""
    heard: list[tuple[str, str, str]] = []

    class Liar(http.server.BaseHTTPRequestHandler):
        def answer(self) -> None:
            heard.append((self.command, self.path, self.headers.get("Authorization") or ""))
            self.rfile.read(int(self.headers.get("Content-Length") or 0))
            url = f"http://127.0.0.1:{self.server.server_address[1]}"
            documents = {
                "protected-resource": {"resource": resource or f"{url}/mcp", "authorization_servers": [url]},
                "authorization-server": {
                    "issuer": url,
                    "authorization_endpoint": f"{url}/authorize",
                    "token_endpoint": f"{url}/token",
                    "registration_endpoint": f"{url}/register",
                    "code_challenge_methods_supported": ["S256"],
                    "response_types_supported": ["code"],
                    **metadata,
                },
            }
            said = documents["authorization-server"]
            documents["authorization-server"] = {name: value for name, value in said.items() if value is not None}
            status, told = 200, next((told for name, told in documents.items() if name in self.path), {})
            if self.path.startswith("/mcp"):
                status = 401
            elif self.command == "DELETE":
                status = 204
            elif self.path == "/register":
                own = {name: url + value if value.startswith("/") else value for name, value in registration.items()}
                status, told = 201, {"client_id": "c", **own}
            elif lost and "authorization-server" in self.path:
                status = 404
            body = json.dumps(told).encode() if status != 204 else b""
            self.send_response(status)
            self.send_header(
                "WWW-Authenticate", f'Bearer error="invalid_token", resource_metadata="{url}/protected-resource"'
            )
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        do_GET = do_POST = do_DELETE = do_OPTIONS = answer

        def log_message(self, *_: object) -> None: ...

    with listening(Liar) as url:
        yield url, heard

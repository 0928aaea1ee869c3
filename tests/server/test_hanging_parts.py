"""Each outside part of docs/operating.md takes connections and answers nothing: what needs it ends by its limit.

A row of the table without a test here fails, and a test without a row.
"""

import base64
import contextlib
import json
import os
import re
import signal
import socket
import sqlite3
import subprocess
import threading
import time
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Any

import pytest

from tests.clients.raw_client import COMMAND, PATIENCE, ROOT, STATELESS, eventually
from tests.clients.raw_http_client import Site, site
from tests.clients.stateless_requests import ask, text
from tests.server.auth.login.test_providers import FORM, approve, to_consent
from tests.server.auth.minted_tokens import ENVELOPE, HELLO, asked, request, signed_site
from tests.server.auth.sign_in_server import sign_in_server
from tests.server.features.telemetry.test_traces import surroundings
from tests.servers.postgres import Postgres
from tests.servers.replicas import Replicas, running_replicas
from toolgate.server.auth.tokens import jose

WEBHOOK_SECRET = "whsec_" + base64.b64encode(b"a" * 32).decode()
MARGIN = 30.0  # seconds: test machines are slow at times. What hangs does so for longer
ROW = re.compile(r"^\| \*\*(.+?)\*\* \| ([\d.]+) s", re.MULTILINE)
HOLES: dict[str, Callable[[Path, Postgres], None]] = {}  # a row of the table → its test


def read_limits() -> dict[str, float]:
    """Return the seconds of each row."""
    section = (
        (ROOT / "docs/operating.md").read_text().partition("## When an outside part hangs")[2].partition("\n## ")[0]
    )
    return {name: float(seconds) for name, seconds in ROW.findall(section)}


def hole(name: str) -> Callable[[Callable[[Path, Postgres], None]], Callable[[Path, Postgres], None]]:
    """Declare the test of a row."""

    def declare(test: Callable[[Path, Postgres], None]) -> Callable[[Path, Postgres], None]:
        HOLES[name] = test
        return test

    return declare


@contextlib.contextmanager
def black_hole() -> Generator[int]:
    """Yield a port that takes connections, and answers nothing."""
    with socket.create_server(("127.0.0.1", 0), backlog=100) as listener:
        yield int(listener.getsockname()[1])


@contextlib.contextmanager
def ends_within(name: str) -> Generator[None]:
    began = time.monotonic()
    yield
    took = time.monotonic() - began
    assert took < read_limits()[name] + MARGIN, took


def call(at: Site, tool: str, **arguments: Any) -> Any:
    """Return the result of a call of 2026-07-28, whose client knows no tasks."""
    meta = {"name": tool, "arguments": arguments, "_meta": ENVELOPE}
    headers = {"mcp_protocol_version": STATELESS, "mcp_method": "tools/call", "mcp_name": tool}
    _, raw, said = at.ask("POST", "/mcp", request("tools/call", meta), **headers)
    return (said or json.loads(raw.decode().rpartition("data: ")[2]))["result"]


def fails(at: Site, tool: str, **arguments: Any) -> str:
    """Return the text of a call that fails."""
    result = call(at, tool, **arguments)
    assert result["isError"], result
    return text(result)


def works(at: Site, tool: str, **arguments: Any) -> bool:
    return not call(at, tool, **arguments)["isError"]


@contextlib.contextmanager
def one_replica(folder: Path, postgres: Postgres) -> Generator[Replicas]:
    with running_replicas(folder, postgres, count=1) as replicas:
        assert works(replicas.sites[0], "Bash", command="true")
        yield replicas


@hole("PostgreSQL")
def postgresql_hangs(folder: Path, postgres: Postgres) -> None:
    with one_replica(folder, postgres) as replicas:
        (at,) = replicas.sites
        with postgres.hanging():
            for tool, arguments in (("TaskManager", {"action": "create", "query": "x"}), ("Bash", {"command": "true"})):
                with ends_within("PostgreSQL"):
                    said = fails(at, tool, **arguments)
                assert "PostgreSQL" in said and "nothing was changed" in said
            assert "tools" in ask(at, "", "tools/list")
            assert at.ask("GET", "/health")[0].status == 200
            assert eventually(lambda: at.ask("GET", "/ready")[0].status == 503)
        assert eventually(lambda: works(at, "TaskManager", action="create", query="y"))
        assert eventually(lambda: at.ask("GET", "/ready")[0].status == 200)
        assert text(call(at, "TaskManager", action="list", query="")) == "[ ] task 1: y (current)"


@hole("`state.db`")
def sqlite_is_locked(folder: Path, postgres: Postgres) -> None:
    with site(folder) as at:
        assert works(at, "TaskManager", action="create", query="x")
        with contextlib.closing(sqlite3.connect(at.state / "state.db", isolation_level=None)) as other:
            other.execute("BEGIN EXCLUSIVE")
            with ends_within("`state.db`"):
                assert "is held by another process" in fails(at, "TaskManager", action="create", query="y")
            assert works(at, "Bash", command="true")
            assert at.ask("GET", "/ready")[0].status == 200
        assert works(at, "TaskManager", action="create", query="z")


@hole("Redis")
def redis_hangs(folder: Path, postgres: Postgres) -> None:
    with one_replica(folder, postgres) as replicas:
        (at,) = replicas.sites
        with replicas.redis.stopped():
            with ends_within("Redis"):
                response, body, _ = at.ask("POST", "/mcp", request("initialize", HELLO))
            assert response.status == 503 and b"Redis" in body
            assert works(at, "TaskManager", action="create", query="x")
            assert works(at, "Bash", command="true")
            assert at.ask("GET", "/health")[0].status == 200
            assert eventually(lambda: at.ask("GET", "/ready")[0].status == 503)
        assert eventually(lambda: at.ask("POST", "/mcp", request("initialize", HELLO))[0].status == 200)
        assert eventually(lambda: at.ask("GET", "/ready")[0].status == 200)


@hole("A node")
def node_hangs(folder: Path, postgres: Postgres) -> None:
    with one_replica(folder, postgres) as replicas:
        (at,) = replicas.sites
        process = replicas.node.process
        process.send_signal(signal.SIGSTOP)
        try:
            with ends_within("A node"):
                assert "can't be reached" in fails(at, "Bash", command="true")
            assert works(at, "TaskManager", action="create", query="x")
            assert at.ask("GET", "/health")[0].status == 200
        finally:
            process.send_signal(signal.SIGCONT)
        assert eventually(lambda: works(at, "Bash", command="true"))


@hole("The issuer of tokens")
def issuer_hangs(folder: Path, postgres: Postgres) -> None:
    with black_hole() as port:
        issuer = f"http://127.0.0.1:{port}"
        token = jose.sign({"iss": issuer}, jose.generate_key(), "at+jwt")
        options = ("--auth", issuer, "--public-url", "http://127.0.0.1:1", "--allow-private", "127.0.0.1")
        with site(folder, *options) as at:
            with ends_within("The issuer of tokens"):
                response, body, _ = at.ask(
                    "POST", "/mcp", request("initialize", HELLO), authorization=f"Bearer {token}"
                )
            assert response.status == 503 and b"the keys to verify tokens are unavailable" in body
            assert at.ask("GET", "/ready")[0].status == 200


@hole("A sign-in provider")
def provider_hangs(folder: Path, postgres: Postgres) -> None:
    with (
        black_hole() as port,
        sign_in_server(folder, f"oidc=http://127.0.0.1:{port}", credentials=FORM, allow_users=("*",)) as made,
    ):
        browser = made.browser()
        page = to_consent(made, browser)
        with ends_within("A sign-in provider"):
            said = approve(browser, page)
        assert said.status < 500 and "failed" in str(said.body)


@hole("A client's metadata document")
def metadata_document_hangs(folder: Path, postgres: Postgres) -> None:
    with black_hole() as port, site(folder, "--auth", "oauth", "--allow-private", "localhost") as at:
        with ends_within("A client's metadata document"):
            response, body, _ = at.ask("GET", f"/authorize?client_id=https://localhost:{port}/client.json")
        assert response.status == 400 and b"can&#39;t be reached" in body, body


@hole("A webhook's receiver")
def receiver_hangs(folder: Path, postgres: Postgres) -> None:
    with black_hole() as port, signed_site(folder, "--allow-private", "localhost") as signed:
        token = signed.token("ada")
        delivery = {"mode": "webhook", "url": f"https://localhost:{port}/x", "secret": WEBHOOK_SECRET}
        params = {"name": "command.ended", "arguments": {}, "cursor": None, "delivery": delivery}
        said: list[Any] = []
        subscribing = threading.Thread(target=lambda: said.append(asked(signed, token, "events/subscribe", params)))
        with ends_within("A webhook's receiver"):
            subscribing.start()
            assert "result" in asked(signed, token, "tools/list")[2]
            subscribing.join(PATIENCE)
        assert "error" in said[0][2]


@hole("The collector of traces")
def collector_hangs(folder: Path, postgres: Postgres) -> None:
    with black_hole() as port, site(folder, env=surroundings(port)) as at:
        for _ in range(20):
            with ends_within("The collector of traces"):
                assert works(at, "Bash", command="true")


@hole("A search engine")
def engine_hangs(folder: Path, postgres: Postgres) -> None:
    with black_hole() as port:
        options = ("--engines", f"searxng=http://127.0.0.1:{port}/", "--allow-private", "127.0.0.1")
        with site(folder, *options) as at, ends_within("A search engine"):
            assert "searxng" in fails(at, "WebSearch", query="x").lower()


@hole("A web page")
def page_hangs(folder: Path, postgres: Postgres) -> None:
    with black_hole() as port:
        options = ("--browser", "none", "--allow-private", "127.0.0.1")
        with site(folder, *options) as at, ends_within("A web page"):
            fails(at, "ReadDocs", url=f"http://127.0.0.1:{port}/")


@hole("A log that is not read")
def log_is_not_read(folder: Path, postgres: Postgres) -> None:
    reader, writer = os.pipe()
    words = [COMMAND, "-t", "-v", "--auth", "none", "--port", "0", "--state", str(folder / "state")]
    words += ["--workspace", str(folder), "--sandbox", "none"]
    with subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=writer) as process:
        try:
            os.close(writer)
            log = b""
            while (found := re.search(rb"serving http://127\.0\.0\.1:(\d+)/", log)) is None:
                log += os.read(reader, 65_536)
            at = Site.__new__(Site)  # its log is the pipe
            at.port = int(found[1])
            with ends_within("A log that is not read"):
                for _ in range(1_000):  # lines of more than a pipe holds
                    assert at.ask("POST", "/mcp", b"x" * 200, x_forwarded_for="x")[0].status == 403
            assert works(at, "Bash", command="true")
            process.terminate()
            assert process.wait(PATIENCE) == 0
        finally:
            process.kill()
            os.close(reader)


@pytest.mark.parametrize("name", read_limits())
def test_what_needs_a_part_that_hangs_ends_by_its_limit(name: str, tmp_path: Path, postgres: Postgres) -> None:
    HOLES[name](tmp_path, postgres)


def test_each_part_that_is_tested_has_a_row() -> None:
    assert HOLES.keys() == read_limits().keys()

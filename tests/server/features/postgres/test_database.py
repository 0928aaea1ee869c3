"""A whole server whose state is in PostgreSQL."""

import asyncio
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.clients.raw_client import COMMAND, PATIENCE, eventually
from tests.clients.raw_http_client import Site, site
from tests.server.cli.commands.test_user_and_client import HELLO, PASSWORD, granted, is_let_in, refreshed, registered
from tests.server.cli.test_cli import run
from tests.server.features.telemetry.test_metrics import told
from tests.servers.postgres import PASSWORD as DATABASE_PASSWORD
from tests.servers.postgres import Postgres
from toolgate.server.config import load
from toolgate.server.config.protected_paths import hidden_paths
from toolgate.server.features.postgres.database import driver as driver
from toolgate.server.features.postgres.database.monitor import TIMEOUT, PostgresMonitor
from toolgate.server.features.postgres.database_url import parse_database_url


@pytest.fixture
def shared(tmp_path: Path, postgres: Postgres) -> tuple[str, ...]:
    """Return the options for a new database, with its URL and secret in files."""
    (tmp_path / "url").write_text(postgres.to_tcp(postgres.create_database()))
    (tmp_path / "secret").write_bytes(os.urandom(32))
    for name in ("url", "secret"):
        (tmp_path / name).chmod(0o600)
    return "--database", f"file:{tmp_path / 'url'}", "--secret", str(tmp_path / "secret")


def called(at: Site, token: str, name: str, **arguments: Any) -> str:
    bearer = {"authorization": f"Bearer {token}"}
    response, _, _ = at.ask(
        "POST", "/mcp", {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": HELLO}, **bearer
    )
    session = {"mcp_session_id": str(response.getheader("mcp-session-id"))}
    at.ask("POST", "/mcp", {"jsonrpc": "2.0", "method": "notifications/initialized"}, **bearer, **session)
    message = {"jsonrpc": "2.0", "id": 2, "method": "tools/call", "params": {"name": name, "arguments": arguments}}
    response, body, _ = at.ask("POST", "/mcp", message, **bearer, **session)
    assert response.status == 200, body
    return body.decode()


def test_a_server_with_another_folder_goes_on_where_one_ended(tmp_path: Path, shared: tuple[str, ...]) -> None:
    """What one stored is not in its folder: people, clients, grants, keys and to-dos."""
    options = ("--auth", "oauth", *shared)
    added = run(tmp_path, "user", "add", "ada", "--state", "state", *shared[:2], stdin=PASSWORD)
    assert added.returncode == 0, added
    assert "postgresql://127.0.0.1:" in added.stdout and DATABASE_PASSWORD not in added.stdout
    with site(tmp_path / "one", *options) as at:
        client = registered(at)
        tokens = granted(at, client)
        called(at, tokens["access_token"], "TaskManager", action="create", query="from the first")
        port = at.port
        assert not (at.state / "state.db").exists() and not (at.state / "flags").exists()
        assert not {path.name for path in (at.state / "keys").iterdir()} & {"signing", "questions", "request-state"}
    with site(tmp_path / "two", *options, "--port", str(port)) as at:
        assert is_let_in(at, tokens["access_token"])
        assert "from the first" in called(at, tokens["access_token"], "TaskManager", action="list", query="")
        status, fresh = refreshed(at, client, tokens)
        assert status == 200
        done = run(tmp_path, "key", "rotate", "--drop-old", "--state", "two/state", *shared)
        assert done.returncode == 0, done
        assert eventually(lambda: not is_let_in(at, fresh["access_token"]))
        status, fresh = refreshed(at, client, fresh)
        assert status == 200 and is_let_in(at, fresh["access_token"])


def test_the_password_is_in_no_output_and_in_no_childs_environment(
    tmp_path: Path, shared: tuple[str, ...], postgres: Postgres
) -> None:
    url = (tmp_path / "url").read_text()
    secrets = (DATABASE_PASSWORD, DATABASE_PASSWORD.replace("@", "%40"))
    with site(tmp_path / "one", "-v", *shared[2:], env={"TOOLGATE_DATABASE": url}) as at:
        body = called(at, "", "Bash", command="env; cat /proc/self/environ")
        assert "PATH=" in body and not any(secret in body for secret in secrets)
        postgres.stop()
        try:
            told = called(at, "", "TaskManager", action="list", query="")
        finally:
            postgres.start()
        assert "PostgreSQL" in told and "can't be reached" in told
        assert '"isError":true' in told
        assert '"isError":true' not in called(at, "", "TaskManager", action="list", query="")
        assert not any(secret in at.log() + told for secret in secrets)
    for words in (("doctor", "--browser", "none", "-t", "--port", "0"), ("user", "list"), ("user", "remove", "bob")):
        done = run(tmp_path, *words, "--state", "state", *shared[:2])
        assert not any(secret in done.stdout + done.stderr for secret in secrets)


def test_without_postgresql_a_server_is_not_ready_and_its_metrics_say_why(
    tmp_path: Path, shared: tuple[str, ...], postgres: Postgres
) -> None:
    with site(tmp_path / "one", *shared) as at:
        assert eventually(lambda: told(at)["toolgate_database_latency_seconds"][()] > 0)
        found = told(at)
        assert found["toolgate_database_up"] == {(): 1.0}
        assert eventually(lambda: told(at)["toolgate_database_transactions_waiting"] == {(): 0.0})  # after the start's
        assert not [name for name in found if name.startswith("toolgate_bus")]
        postgres.stop()
        try:
            assert eventually(lambda: told(at)["toolgate_database_up"] == {(): 0.0})
            assert at.ask("GET", "/ready")[0].status == 200  # it may be restarting
            assert eventually(lambda: at.ask("GET", "/ready")[0].status == 503)
            assert at.ask("GET", "/ready")[2]["status"] == "PostgreSQL does not answer"
        finally:
            postgres.start()
        assert eventually(lambda: at.ask("GET", "/ready")[0].status == 200)
        assert told(at)["toolgate_database_up"] == {(): 1.0}
        assert "PostgreSQL answers again" in at.log()


def test_a_connection_that_says_nothing_is_given_up(postgres: Postgres) -> None:
    async def body() -> None:
        url = parse_database_url(postgres.create_database())
        monitor = PostgresMonitor(partial(driver.connect, url), lambda: (2, 1))
        asking = asyncio.create_task(monitor.run())
        await wait_until(lambda: monitor.health().latency > 0)
        pid = int(postgres.run_sql("SELECT pid FROM pg_stat_activity WHERE query = 'SELECT 1'"))
        os.kill(pid, signal.SIGSTOP)
        try:
            await wait_until(lambda: not monitor.health().is_reachable)
            assert TIMEOUT <= monitor.health().seconds < PATIENCE
            await wait_until(lambda: monitor.health().is_reachable)  # by a new connection
        finally:
            os.kill(pid, signal.SIGCONT)
        assert (monitor.health().running, monitor.health().waiting) == (2, 1)
        asking.cancel()
        await asyncio.wait([asking])

    asyncio.run(body())


async def wait_until(is_true: Callable[[], bool]) -> None:
    async with asyncio.timeout(PATIENCE):
        while not is_true():
            await asyncio.sleep(0.02)


@pytest.mark.parametrize(
    ("word", "said"),
    [
        ("mysql://u:s3cret@host/db", "--database: must be postgresql://"),
        ("file:missing", "--database: can't read"),
        ("file:url", "the URL must be postgresql://"),
    ],
)
def test_a_database_that_is_none_is_a_wrong_command_line(tmp_path: Path, word: str, said: str) -> None:
    (tmp_path / "url").write_text("s3cret")
    done = run(tmp_path, "user", "list", "--database", word)
    assert done.returncode == 2 and said in done.stderr and "s3cret" not in done.stderr


@pytest.mark.parametrize(
    ("size", "mode", "said"),
    [(31, 0o600, "must have at least 32 random bytes"), (32, 0o640, "others can read"), (32, 0o604, "others can read")],
)
def test_a_secret_that_is_weak_or_open_is_refused(tmp_path: Path, size: int, mode: int, said: str) -> None:
    (tmp_path / "secret").write_bytes(b"x" * size)
    (tmp_path / "secret").chmod(mode)
    words = ("--secret", "secret", "--database", "postgresql://127.0.0.1:1/x")
    done = run(tmp_path, "key", "rotate", *words)
    assert done.returncode == 2 and f"--secret: {said}" in done.stderr.replace(f"{tmp_path}/secret ", "")


def test_a_secret_without_a_database_is_refused(tmp_path: Path) -> None:
    (tmp_path / "secret").write_bytes(b"x" * 32)
    (tmp_path / "secret").chmod(0o600)
    done = run(tmp_path, "key", "rotate", "--state", "state", "--secret", "secret")
    assert done.returncode == 2 and "--secret is for --database" in done.stderr


def test_another_secret_is_refused_at_the_start(tmp_path: Path, shared: tuple[str, ...]) -> None:
    with site(tmp_path / "one", *shared):
        pass
    (tmp_path / "secret").write_bytes(b"y" * 32)
    done = run(tmp_path, "-t", "--auth", "none", "--port", "0", *shared)
    assert done.returncode == 1 and "sealed with another secret" in done.stderr


def test_sealed_keys_are_not_left_behind(tmp_path: Path, shared: tuple[str, ...]) -> None:
    """Without the secret a server or `key rotate` would make other keys, and end all access."""
    with site(tmp_path / "one", *shared):
        pass
    for words in (("-t", "--auth", "none", "--port", "0"), ("key", "rotate", "--state", "state")):
        done = run(tmp_path, *words, *shared[:2])
        assert done.returncode == 1 and "give the --secret of its servers" in done.stderr


def test_no_command_in_a_sandbox_reads_the_url_and_the_secret(tmp_path: Path, shared: tuple[str, ...]) -> None:
    config = load.load({"database": shared[1], "secret": shared[3]}, {})
    assert {tmp_path / "url", tmp_path / "secret"} <= set(hidden_paths(config, tmp_path / "state"))


def test_without_the_option_nothing_of_postgresql_is_imported(tmp_path: Path) -> None:
    lines = ["import sys", "from toolgate.server.app.app import App", "from toolgate.server.config import load"]
    lines += ["App(load.load({}))", "print([name for name in ('asyncpg', 'sqlalchemy') if name in sys.modules])"]
    words = [sys.executable, "-c", "\n".join(lines)]
    done = subprocess.run(words, capture_output=True, text=True, timeout=60, cwd=tmp_path, env={"HOME": str(tmp_path)})
    assert done.stdout.strip() == "[]", done.stderr


@pytest.mark.parametrize("served", [("-t", "--auth", "none", "--port", "0"), ()], ids=["HTTP", "stdio"])
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_a_server_that_waits_for_its_database(
    tmp_path: Path, served: tuple[str, ...], number: signal.Signals
) -> None:
    (tmp_path / "secret").write_bytes(b"x" * 32)
    (tmp_path / "secret").chmod(0o600)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.settimeout(PATIENCE)
        url = f"postgresql://127.0.0.1:{listener.getsockname()[1]}/x?sslmode=disable"
        words = (COMMAND, *served, "--database", url, "--secret", str(tmp_path / "secret"), "--state", "state")
        with subprocess.Popen(
            (*words, "--workspace", str(tmp_path), "--sandbox", "none"),
            stdin=subprocess.PIPE,
            stderr=subprocess.PIPE,
            cwd=tmp_path,
            text=True,
        ) as process:
            try:
                connection, _ = listener.accept()
                with connection:
                    process.send_signal(number)
                    _, errors = process.communicate(timeout=PATIENCE)
            finally:
                process.kill()
    assert (process.returncode, errors.count("Traceback")) == (0, 0), errors
    assert "ended before it served" in errors and "can't be reached" not in errors

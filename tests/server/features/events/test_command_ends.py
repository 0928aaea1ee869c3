"""The end of each background task is told once, whatever ends or fails near it."""

import contextlib
import os
import random
import secrets
import signal
import sqlite3
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import pytest

from tests.clients.event_client import first_cursor, poll
from tests.clients.raw_client import STATELESS, Server, children, eventually
from tests.clients.raw_http_client import Site, site, spoken
from tests.server.features.nodes.nodes import running_node
from tests.servers.postgres import Postgres
from tests.servers.replicas import running_replicas
from toolgate.tools.workspace.output.run_record import Run
from toolgate.tools.workspace.output.spool import KEPT_UNREPORTED

Start = Callable[..., Server]

ENDED = "command.ended"
LATEST = 0.25  # seconds after the end of a command, in which its server is killed
ROUNDS = pytest.mark.parametrize("rounds", [3, pytest.param(30, marks=pytest.mark.soak)])


def list_ends(client: Server, cursor: str) -> list[int]:
    """Return the tasks whose ends are told after a cursor, none of which may be missing without a word."""
    found: list[int] = []
    while True:
        page = poll(client, ENDED, cursor, maxEvents=100)
        assert page["truncated"] is False
        found += [event["data"]["id"] for event in page["events"]]
        if not page["hasMore"]:
            return found
        cursor = page["cursor"]


def expect_ends(client: Server, cursor: str, tasks: list[int]) -> None:
    """Wait until each task's end is told, and check that none is told twice."""
    assert eventually(lambda: set(list_ends(client, cursor)) >= set(tasks)), (tasks, list_ends(client, cursor))
    assert sorted(list_ends(client, cursor)) == sorted(tasks)


def begin(client: Server, command: str) -> int:
    return int(client.call("BackgroundBash", {"command": command})["structuredContent"]["task_id"])


@contextlib.contextmanager
def client_of(server: Site) -> Iterator[Server]:
    with spoken(server, "http", revision=STATELESS) as client:
        yield client


@contextlib.contextmanager
def on_database(folder: Path, postgres: Postgres) -> Iterator[Server]:
    """Yield a client of a server whose state is in PostgreSQL."""
    secret = folder / "secret"
    secret.touch(0o600)
    secret.write_bytes(secrets.token_bytes(32))
    options = ("--database", postgres.create_database(), "--secret", str(secret))
    with site(folder, *options) as server, client_of(server) as client:
        yield client


@ROUNDS
def test_each_end_near_a_kill_of_the_server_is_told_once(start: Start, tmp_path: Path, rounds: int) -> None:
    state, dice, tasks = tmp_path / "kept", random.Random(rounds), list[int]()
    client = start(revision=STATELESS, state=state)
    cursor = first_cursor(client, ENDED)
    for number in range(rounds):
        tasks.append(begin(client, f"sleep 0.05; true {number}"))
        time.sleep(0.05 + dice.random() * LATEST)
        client.kill()
        client = start(revision=STATELESS, state=state)
    expect_ends(client, cursor, tasks)


@ROUNDS
@pytest.mark.parametrize("also_node", [False, True], ids=["gateway", "gateway and node"])
def test_each_end_near_a_kill_of_the_gateway_is_told_once(tmp_path: Path, rounds: int, also_node: bool) -> None:
    dice, tasks, cursor = random.Random(rounds), list[int](), ""
    with running_node(tmp_path / "node", "--sandbox", "none") as node:
        for number in range(rounds):
            with site(tmp_path, "--node", str(node.address), workspace=False) as gateway, client_of(gateway) as client:
                cursor = cursor or first_cursor(client, ENDED)
                tasks.append(begin(client, f"sleep 0.05; true {number}"))
                time.sleep(0.05 + dice.random() * LATEST)
                gateway.kill()
                if also_node:
                    node.kill()
                    node.start()
        with site(tmp_path, "--node", str(node.address), workspace=False) as gateway, client_of(gateway) as client:
            expect_ends(client, cursor, tasks)


@ROUNDS
def test_each_end_near_a_kill_of_a_replica_is_told_once(postgres: Postgres, tmp_path: Path, rounds: int) -> None:
    dice, tasks = random.Random(rounds), list[int]()
    with running_replicas(tmp_path, postgres, count=3) as replicas:
        with client_of(replicas.sites[0]) as client:
            cursor = first_cursor(client, ENDED)
        for number in range(rounds):
            place = number % 3
            with client_of(replicas.sites[place]) as client:
                tasks.append(begin(client, f"sleep 0.05; true {number}"))
                time.sleep(0.05 + dice.random() * LATEST)
                replicas.sites[place].kill()
            replicas.restart(place)
        with client_of(replicas.sites[0]) as client:
            expect_ends(client, cursor, tasks)


def test_an_end_is_told_by_a_replica_that_never_served_the_person(postgres: Postgres, tmp_path: Path) -> None:
    with running_replicas(tmp_path, postgres, count=2) as replicas:
        first, second = replicas.sites
        with client_of(first) as client:
            cursor = first_cursor(client, ENDED)
            task = begin(client, "sleep 0.5")
            first.kill()
        with client_of(second) as client:
            expect_ends(client, cursor, [task])


def test_an_end_while_the_database_is_away_is_told(postgres: Postgres, tmp_path: Path) -> None:
    with on_database(tmp_path, postgres) as client:
        cursor = first_cursor(client, ENDED)
        tasks = [begin(client, f"sleep 1; true {number}") for number in range(3)]
        postgres.stop()
        time.sleep(4.0)  # longer than a transaction waits for its database
        postgres.start()
        expect_ends(client, cursor, tasks)


def test_an_end_while_the_database_hangs_is_told(postgres: Postgres, tmp_path: Path) -> None:
    with on_database(tmp_path, postgres) as client:
        cursor = first_cursor(client, ENDED)
        tasks = [begin(client, f"sleep 1; true {number}") for number in range(3)]
        assert postgres.process is not None
        processes = [postgres.process.pid, *children(postgres.process.pid)]
        for process in processes:
            os.kill(process, signal.SIGSTOP)
        time.sleep(4.0)
        for process in processes:
            os.kill(process, signal.SIGCONT)
        expect_ends(client, cursor, tasks)


def test_an_end_while_another_process_locks_the_state_is_told(start: Start, tmp_path: Path) -> None:
    client = start(revision=STATELESS, state=tmp_path / "kept")
    cursor = first_cursor(client, ENDED)
    tasks = [begin(client, f"sleep 0.5; true {number}") for number in range(4)]
    with contextlib.closing(sqlite3.connect(tmp_path / "kept" / "state.db", isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        time.sleep(8.0)  # four times as long as a transaction waits for its turn
        other.execute("ROLLBACK")
    expect_ends(client, cursor, tasks)


def test_an_end_that_the_locked_state_did_not_take_is_told_after_a_kill(start: Start, tmp_path: Path) -> None:
    client = start(revision=STATELESS, state=tmp_path / "kept")
    cursor = first_cursor(client, ENDED)
    with contextlib.closing(sqlite3.connect(tmp_path / "kept" / "state.db", isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        task = begin(client, "echo done")
        assert eventually(lambda: "exited" in client.text("ListBgTasks"))
        client.kill()
        other.execute("ROLLBACK")
    client = start(revision=STATELESS, state=tmp_path / "kept")
    expect_ends(client, cursor, [task])


@pytest.mark.brief("signal", "hold")  # it ends by itself, and the server ends it
@pytest.mark.parametrize("way", ["KillBgTask", "age", "signal", "hold"])
def test_each_kind_of_end_is_told_after_a_kill(start: Start, tmp_path: Path, way: str) -> None:
    options = {"age": ["--limit", "age=1s"], "hold": ["--hold", "2"]}.get(way, [])
    client = start(*options, revision=STATELESS, state=tmp_path / "kept")
    cursor = first_cursor(client, ENDED)
    with contextlib.closing(sqlite3.connect(tmp_path / "kept" / "state.db", isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        task = _end_task(client, way)
        assert eventually(lambda: "running" not in client.text("ListBgTasks"))
        client.kill()
        other.execute("ROLLBACK")
    client = start(*options, revision=STATELESS, state=tmp_path / "kept")
    expect_ends(client, cursor, [task])


def _end_task(client: Server, way: str) -> int:
    """Begin a background task that ends in this way."""
    if way == "hold":
        client.text("Bash", {"command": "sleep 3; echo over"})
        return 1
    task = begin(client, "kill -KILL $$" if way == "signal" else "sleep 60")
    if way == "KillBgTask":
        client.text("KillBgTask", {"task_id": task})
    return task


def test_an_end_of_a_release_without_reports_is_not_told_again(start: Start, tmp_path: Path) -> None:
    client = start(revision=STATELESS, state=tmp_path / "kept")
    cursor = first_cursor(client, ENDED)
    task = begin(client, "true")
    expect_ends(client, cursor, [task])
    client.kill()
    record = next((tmp_path / "kept" / "spool").glob("*/1/task.json"))
    assert '"is_report_due":false' in record.read_text()
    record.write_text(record.read_text().replace(',"is_report_due":false', ""))
    with contextlib.closing(sqlite3.connect(tmp_path / "kept" / "state.db", isolation_level=None)) as other:
        other.execute("DELETE FROM event")
    client = start(revision=STATELESS, state=tmp_path / "kept")
    later = begin(client, "true")
    assert eventually(lambda: later in list_ends(client, cursor))
    assert list_ends(client, cursor) == [later]


def test_ends_beyond_what_a_spool_holds_are_a_gap(start: Start, tmp_path: Path) -> None:
    client = start(revision=STATELESS, state=tmp_path / "kept")
    cursor = first_cursor(client, ENDED)
    client.text("Bash", {"command": "true"})
    client.kill()
    for number in range(1, KEPT_UNREPORTED + 2):
        folder = tmp_path / "kept" / "spool" / "local" / str(number)
        folder.mkdir(mode=0o700)
        now = time.time()
        run = Run(number, "true", "a-server", now, True, "exited", 0, now + number / 10_000, is_report_due=True)
        (folder / "task.json").write_bytes(msgspec.json.encode(run))
    client = start(revision=STATELESS, state=tmp_path / "kept")
    assert eventually(lambda: poll(client, ENDED, cursor)["truncated"])
    found: set[int] = set()

    def read_on() -> bool:
        nonlocal cursor
        page = poll(client, ENDED, cursor, maxEvents=100)
        found.update(event["data"]["id"] for event in page["events"])
        cursor = page["cursor"]
        return len(found) == KEPT_UNREPORTED

    assert eventually(read_on)
    assert found == set(range(2, KEPT_UNREPORTED + 2))

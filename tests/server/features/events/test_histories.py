"""Seeded histories of three gateways: people work while parts die, hang and start again. What was acknowledged happened
once and is told once; what was not happened at most once."""

import contextlib
import http.client
import json
import os
import random
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.clients.event_client import first_cursor, poll
from tests.clients.raw_client import STATELESS, Server, eventually
from tests.clients.raw_http_client import Site, spoken
from tests.server.auth.minted_tokens import ENVELOPE, request
from tests.servers.postgres import Postgres
from tests.servers.replicas import Replicas, running_replicas

PEOPLE = 3
LATEST = 0.4  # seconds until a command ends
AWAY = 1.5  # seconds that a part is away or hangs, at most
PAUSE = 0.6  # seconds between two faults, at most
SETTLED = 40.0  # seconds until all is told


class Person:
    """Somebody who works at any of the gateways. `acknowledged` and `unknown` hold the names of what was done."""

    def __init__(self, replicas: Replicas, name: str, dice: random.Random) -> None:
        self.acknowledged: dict[str, list[str]] = {"end": [], "to-do": [], "line": []}
        self.unknown: dict[str, list[str]] = {"end": [], "to-do": [], "line": []}
        self._replicas = replicas
        self._name = name
        self._dice = dice
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._work, name=name)
        self._thread.start()

    def end(self) -> None:
        self._ending.set()
        self._thread.join()

    def _work(self) -> None:
        number = 0
        while not self._ending.is_set():
            number += 1
            kind = self._dice.choice([*self.acknowledged])
            result = self._do(kind, f"{self._name}-{number}")
            if result is None or result.get("isError"):
                self.unknown[kind].append(f"{self._name}-{number}")
                time.sleep(0.05)  # the gateway may be dead
            else:
                done = str(result["structuredContent"]["task_id"]) if kind == "end" else f"{self._name}-{number}"
                self.acknowledged[kind].append(done)

    def _do(self, kind: str, name: str) -> dict[str, Any] | None:
        """Do one thing, and return the result of its call, or None without one."""
        site = self._dice.choice(self._replicas.sites)
        if kind == "to-do":
            return call(site, "TaskManager", action="create", query=name)
        if kind == "line":
            return call(site, "Bash", command=f"echo {name} >> lines")
        return call(site, "BackgroundBash", command=f"sleep {self._dice.random() * LATEST:.3f}; true {name}")


def call(site: Site, tool: str, **arguments: Any) -> dict[str, Any] | None:
    """Return the result of a call, or None if there is no answer or an error."""
    message = request("tools/call", {"name": tool, "arguments": arguments, "_meta": ENVELOPE})
    headers = {"mcp_protocol_version": STATELESS, "mcp_method": "tools/call", "mcp_name": tool}
    try:
        response, raw, answer = site.ask("POST", "/mcp", message, **headers)
        if response.status != 200:
            return None
        result: dict[str, Any] | None = (answer or json.loads(raw.decode().rpartition("data: ")[2])).get("result")
    except (OSError, http.client.HTTPException, ValueError):
        return None
    return result


def faults(replicas: Replicas, postgres: Postgres, dice: random.Random) -> dict[str, Callable[[], None]]:
    """Return what may happen to the parts, by name."""

    def kill_gateway() -> None:
        replicas.restart(dice.randrange(len(replicas.sites)))

    def stop_gateway() -> None:
        process = dice.choice(replicas.sites).process
        os.kill(process.pid, signal.SIGSTOP)
        time.sleep(dice.random() * AWAY)
        os.kill(process.pid, signal.SIGCONT)

    def kill_node() -> None:
        replicas.node.kill()
        time.sleep(dice.random() * AWAY)
        replicas.node.start()

    def kill_redis() -> None:
        replicas.redis.kill()
        time.sleep(dice.random() * AWAY)
        replicas.redis.start()

    def hang_redis() -> None:
        with replicas.redis.stopped():
            time.sleep(dice.random() * AWAY)

    def stop_database() -> None:
        postgres.stop()
        time.sleep(dice.random() * AWAY)
        postgres.start()

    def hang_database() -> None:
        with postgres.hanging():
            time.sleep(dice.random() * AWAY)

    found = (kill_gateway, stop_gateway, kill_node, kill_redis, hang_redis, stop_database, hang_database)
    return {each.__name__: each for each in found}


@contextlib.contextmanager
def client_of(site: Site) -> Iterator[Server]:
    with spoken(site, "http", revision=STATELESS) as client:
        yield client


def list_events(client: Server, name: str, cursor: str) -> list[dict[str, Any]]:
    """Return the payloads after a cursor, none of which may be missing without a word."""
    found: list[dict[str, Any]] = []
    while True:
        page = poll(client, name, cursor, maxEvents=100)
        assert page["truncated"] is False
        found += [event["data"] for event in page["events"]]
        if not page["hasMore"]:
            return found
        cursor = page["cursor"]


@pytest.mark.parametrize(
    ("seed", "times"),
    [(1, 2), *(pytest.param(seed, 14, marks=pytest.mark.soak) for seed in range(2, 22))],
)
def test_what_was_acknowledged_happened_once_and_is_told_once(
    postgres: Postgres, tmp_path: Path, seed: int, times: int
) -> None:
    dice = random.Random(seed)
    with running_replicas(tmp_path, postgres, count=3) as shared:
        happens = faults(shared, postgres, dice)
        with client_of(shared.sites[0]) as client:
            ends, changes = first_cursor(client, "command.ended"), first_cursor(client, "todo.changed")
        people = [Person(shared, f"p{number}", random.Random(f"{seed} {number}")) for number in range(PEOPLE)]
        history = []
        for _ in range(times):
            time.sleep(dice.random() * PAUSE)
            history.append(dice.choice([*happens]))
            happens[history[-1]]()
        for person in people:
            person.end()
        with client_of(shared.restart(0)) as client:
            _expect_ends(client, ends, people, history)
            _expect_changes(client, changes, people, history)
        lines = Counter((shared.node.state / "workspaces" / "local" / "lines").read_text().split())
    _expect_once("line", people, lines, history)


def _expect_ends(client: Server, cursor: str, people: list[Person], history: list[str]) -> None:
    wanted = {task for person in people for task in person.acknowledged["end"]}

    def count() -> Counter[str]:
        return Counter(str(event["id"]) for event in list_events(client, "command.ended", cursor))

    eventually(lambda: wanted <= {*count()}, SETTLED)
    ends = count()
    assert {task: ends[task] for task in wanted if ends[task] != 1} == {}, history
    assert {task: number for task, number in ends.items() if number > 1} == {}, history


def _expect_changes(client: Server, cursor: str, people: list[Person], history: list[str]) -> None:
    events = list_events(client, "todo.changed", cursor)
    _expect_once("to-do", people, Counter(event["name"] for event in events), history)
    read = client.request("resources/read", {"uri": "task://list"})
    stored = [task["name"] for task in json.loads(read["contents"][0]["text"])["tasks"]]
    assert sorted(stored) == sorted(event["name"] for event in events), history


def _expect_once(kind: str, people: list[Person], found: Counter[str], history: list[str]) -> None:
    """Check that each thing that was acknowledged is found once, and each other that was asked for at most once."""
    for person in people:
        assert {name: found[name] for name in person.acknowledged[kind] if found[name] != 1} == {}, history
        assert {name: found[name] for name in person.unknown[kind] if found[name] > 1} == {}, history

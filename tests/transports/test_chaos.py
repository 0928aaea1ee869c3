"""Official clients on three replicas that are killed in turn, while Redis and PostgreSQL restart: nothing acknowledged
is lost or doubled."""

import asyncio
import contextlib
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tests.interop.surviving_clients import Report, check_results, start_clients
from tests.servers.postgres import Postgres
from tests.servers.replicas import Replicas, replicas_behind_nginx

SECONDS = 120.0
EVERY = 5.0  # seconds between two kills
SETTLED = 6.0  # seconds in which a client notices that PostgreSQL or Redis is away, or back


@dataclass
class Chaos:
    """What was done to the servers: when gateways were killed, and from when to when something else was away."""

    kills: list[float] = field(default_factory=list)
    outages: list[tuple[float, float]] = field(default_factory=list)

    @contextlib.contextmanager
    def outage(self) -> Iterator[None]:
        begun = time.time()
        yield
        self.outages.append((begun, time.time() + SETTLED))

    def count_unexpected(self, report: Report) -> int:
        """Return how many errors of a client came in no outage."""
        return sum(not any(begun <= at <= ended for begun, ended in self.outages) for at, _ in report.errors)


@pytest.mark.soak
def test_clients_live_through_kills_and_restarts_of_everything(tmp_path: Path, postgres: Postgres) -> None:
    options = ("--auth", "oauth", "--limit", "calls=100000")
    with replicas_behind_nginx(tmp_path, postgres, *options, count=3) as (replicas, _):
        asyncio.run(live_through(replicas, postgres))


async def live_through(replicas: Replicas, postgres: Postgres) -> None:
    ending = asyncio.Event()
    async with asyncio.TaskGroup() as group:
        clients = start_clients(group, replicas, ending)
        chaos = await asyncio.to_thread(disturb, replicas, postgres)
        await asyncio.sleep(SETTLED)
        ending.set()
    reports = {name: task.result() for name, task in clients.items()}
    await check_results(reports, replicas, postgres)
    print(
        len(chaos.kills), "kills", {name: chaos.count_unexpected(report) for name, report in reports.items()}, "errors"
    )
    for name, report in reports.items():
        assert len(report.acknowledged) > SECONDS / 10, name
        assert chaos.count_unexpected(report) <= len(chaos.kills), (name, report.errors)
        assert report.sessions <= 1 + len(chaos.outages), name  # one more for each loss of what Redis had


def disturb(replicas: Replicas, postgres: Postgres) -> Chaos:
    """Kill a gateway each five seconds, and in between flush and restart Redis, and restart PostgreSQL."""
    chaos = Chaos()
    began = time.monotonic()
    others: list[tuple[float, Callable[[], Any]]] = [
        (SECONDS * 0.3, lambda: replicas.redis.run("FLUSHALL")),
        (SECONDS * 0.5, lambda: restart(replicas.redis.kill, replicas.redis.start)),
        (SECONDS * 0.7, lambda: restart(postgres.stop, postgres.start)),
    ]
    while (passed := time.monotonic() - began) < SECONDS:
        if others and passed > others[0][0]:
            with chaos.outage():
                others.pop(0)[1]()
        next_kill = time.monotonic() + EVERY
        chaos.kills.append(time.time())
        replicas.restart(len(chaos.kills) % len(replicas.sites))
        time.sleep(max(0.0, next_kill - time.monotonic()))
    return chaos


def restart(stop: Callable[[], None], start: Callable[[], None]) -> None:
    stop()
    start()

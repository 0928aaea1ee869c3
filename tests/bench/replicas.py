"""Measure what servers that share Redis and PostgreSQL ask of both: `python -m tests.bench.replicas`.

Processor time is that of each program for one call of `echo` in a signed-in person's session, sent to two servers in
turn. Memory is that of Redis for one session, with and without a stream. docs/replicas.md reckons with these.
"""

import http.client
import json
import tempfile
import threading
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path

import psutil

from tests.clients.raw_client import PATIENCE
from tests.clients.raw_http_client import POSTED, Site
from tests.clients.round_robin import RoundRobin
from tests.conftest import PROBE
from tests.server.cli.test_cli import run
from tests.server.cli.test_user_and_client import PASSWORD, granted, refreshed, registered
from tests.server.node.nodes import running_node
from tests.servers.postgres import Postgres, running_postgres
from tests.servers.redis_server import RedisProcess
from tests.servers.replicas import running_replicas
from tests.transports.test_replicas_of_people import manage

CLIENTS = 16
CALLS = 250  # of each client
SESSIONS = 100  # of each of a person's apps, as many as a server keeps
COUNTED = 80  # of these, the last
APPS = 3
KNOWS = {"elicitation": {"form": {}, "url": {}}, "roots": {"listChanged": True}, "sampling": {"tools": {}}}
OPTIONS = ("--auth", "oauth", "--limit", "calls=100000000")
IDLE = 10.0  # seconds
REFRESHES = 200
Processes = dict[str, list[psutil.Process]]


def find_processes(redis: RedisProcess, postgres: Postgres, *sites: Site) -> Processes:
    assert redis._process is not None and postgres.process is not None  # pyright: ignore[reportPrivateUsage]
    return {
        "servers": [psutil.Process(site.process.pid) for site in sites],
        "Redis": [psutil.Process(redis._process.pid)],  # pyright: ignore[reportPrivateUsage]
        "PostgreSQL": [psutil.Process(postgres.process.pid)],
    }


def read_processor(processes: list[psutil.Process]) -> float:
    """Return the seconds of processor time of these processes, and of the children that PostgreSQL has now."""
    total = 0.0
    for process in processes:
        for each in (process, *(process.children() if process.name() == "postgres" else ())):
            times = each.cpu_times()
            total += times.user + times.system
    return total


@contextmanager
def measured(title: str, processes: Processes, count: float, unit: str) -> Generator[None]:
    before = {name: read_processor(each) for name, each in processes.items()}
    yield
    spent = {name: (read_processor(each) - before[name]) / count for name, each in processes.items()}
    print(f"{title:34}", ", ".join(f"{name} {seconds * 1e6:7.1f} us" for name, seconds in spent.items()), unit)


def run_clients(work: Callable[[], None]) -> None:
    threads = [threading.Thread(target=work) for _ in range(CLIENTS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def call_in_turn(sites: list[Site], token: str) -> None:
    client = RoundRobin(sites, capabilities=KNOWS, token=token)
    client.ready()
    headers = {name.replace("_", "-"): value for name, value in client.headers.items()} | POSTED
    params = {"name": "echo", "arguments": {"text": "x"}}
    connections = [http.client.HTTPConnection("127.0.0.1", site.port, timeout=PATIENCE) for site in sites]
    for number in range(CALLS):
        message = {"jsonrpc": "2.0", "id": number, "method": "tools/call", "params": params}
        connection = connections[number % len(connections)]
        connection.request("POST", "/mcp", json.dumps(message), headers)
        answer = connection.getresponse().read()
        assert b'"text":"x"' in answer, answer
    for connection in connections:
        connection.close()
    assert sites[0].ask("DELETE", "/mcp", **client.headers)[0].status == 204


def read_memory(redis: RedisProcess) -> int:
    lines = redis.run("INFO", "memory").decode().splitlines()
    return int(next(line.partition(":")[2] for line in lines if line.startswith("used_memory:")))


def measure_memory(redis: RedisProcess, sites: list[Site], tokens: list[str]) -> None:
    def open_sessions(count: int) -> list[RoundRobin]:
        opened = [RoundRobin(sites, capabilities=KNOWS, token=token) for token in tokens for _ in range(count)]
        for client in opened:
            client.ready()
        return opened

    open_sessions(SESSIONS - COUNTED)  # buffers and tables have grown
    before = read_memory(redis)
    clients = open_sessions(COUNTED)
    print(f"{'a session':34} {(read_memory(redis) - before) / len(clients):,.0f} bytes of Redis")
    for client in clients:
        client.call("talk")
    time.sleep(1)  # the events are written behind
    print(f"{'a session with a stream':34} {(read_memory(redis) - before) / len(clients):,.0f} bytes of Redis")


def measure_shared(folder: Path, postgres: Postgres) -> None:
    with running_replicas(folder, postgres, *OPTIONS) as replicas:
        assert manage(replicas, "user", "add", "ada", stdin=PASSWORD).returncode == 0
        sites, redis = replicas.sites, replicas.redis
        apps = [registered(sites[0]) for _ in range(APPS)]
        grants = [granted(sites[0], app) for app in apps]
        tokens = [grant["access_token"] for grant in grants]
        processes = find_processes(redis, postgres, *sites)
        run_clients(lambda: call_in_turn(sites, tokens[0]))  # to be warm
        with measured("a call, two servers that share", processes, CLIENTS * CALLS, "a call"):
            run_clients(lambda: call_in_turn(sites, tokens[0]))
        time.sleep(2)
        with measured("an idle server that shares", processes, IDLE * len(sites), "a second"):
            time.sleep(IDLE)
        with measured("a session, one stream included", processes, SESSIONS * APPS, "a session"):
            measure_memory(redis, sites, tokens)
        with measured("a new access token", processes, REFRESHES, "a token"):
            for number in range(REFRESHES):
                status, grants[0] = refreshed(sites[number % 2], apps[0], grants[0])
                assert status == 200


def measure_alone(folder: Path) -> None:
    assert run(folder, "user", "add", "ada", "--state", "state", stdin=PASSWORD).returncode == 0
    with running_node(folder / "node", "--sandbox", "none") as node:
        site = Site(folder, *PROBE, *OPTIONS, "--node", str(node.address), workspace=False)
        try:
            token = granted(site, registered(site))["access_token"]
            run_clients(lambda: call_in_turn([site], token))
            with measured(
                "a call, one server with a file",
                {"servers": [psutil.Process(site.process.pid)]},
                CLIENTS * CALLS,
                "a call",
            ):
                run_clients(lambda: call_in_turn([site], token))
        finally:
            site.kill()


def main() -> None:
    with running_postgres() as postgres:
        for _ in range(2):
            with tempfile.TemporaryDirectory() as alone:
                measure_alone(Path(alone))
            with tempfile.TemporaryDirectory() as shared:
                measure_shared(Path(shared), postgres)


if __name__ == "__main__":
    main()

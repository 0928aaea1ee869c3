"""Measure what servers that share Redis and PostgreSQL ask of both: `python -m tests.bench.replicas`.

Processor time is that of each program for one call of `echo` in a signed-in person's session, sent to two servers in
turn. Memory is that of Redis for one session, with and without a stream. docs/replicas.md reckons with these.
Calls a second are those of one and of two servers that are held to 30 % of a core each.
"""

import http.client
import json
import statistics
import tempfile
import threading
import time
from collections.abc import Callable, Generator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import psutil

from tests.clients.raw_client import PATIENCE
from tests.clients.raw_http_client import POSTED, Site
from tests.clients.round_robin import RoundRobin
from tests.conftest import PROBE
from tests.server.cli.commands.test_user_and_client import PASSWORD, granted, refreshed, registered
from tests.server.cli.test_cli import run
from tests.server.features.nodes.nodes import running_node
from tests.server.features.replicas.test_replicas_of_people import manage
from tests.servers.postgres import Postgres, running_postgres
from tests.servers.redis_server import RedisProcess
from tests.servers.replicas import running_replicas
from toolgate.tools.workspace.sandbox.cgroups.cgroups import find_hierarchies
from toolgate.tools.workspace.sandbox.cgroups.versions import V2

CLIENTS = 16
CALLS = 250  # of each client
ROUNDS = 5  # of a comparison
SESSIONS = 100  # of each of a person's apps, as many as a server keeps
COUNTED = 80  # of these, the last
APPS = 3
KNOWS = {"elicitation": {"form": {}, "url": {}}, "roots": {"listChanged": True}, "sampling": {"tools": {}}}
OPTIONS = ("--auth", "oauth", "--limit", "calls=100000000")
IDLE = 10.0  # seconds
REFRESHES = 200
SHARE = 0.3  # of a core, for each of the servers whose calls a second are compared
PERIOD = 20_000  # microseconds in which a server may use its share: in longer ones all clients wait for one of them
LIMITED_CALLS = 200  # of each client, of which each of these servers has CLIENTS
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


def run_clients(work: Callable[[], None], count: int = CLIENTS) -> None:
    threads = [threading.Thread(target=work) for _ in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def call_in_turn(sites: list[Site], token: str, count: int = CALLS) -> None:
    client = RoundRobin(sites, capabilities=KNOWS, token=token)
    client.ready()
    headers = {name.replace("_", "-"): value for name, value in client.headers.items()} | POSTED
    params = {"name": "echo", "arguments": {"text": "x"}}
    connections = [http.client.HTTPConnection("127.0.0.1", site.port, timeout=PATIENCE) for site in sites]
    for number in range(count):
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


@contextmanager
def processor_limit(site: Site) -> Generator[None]:
    """Hold a server to `SHARE` of a core. Raises OSError where no control group can be made."""
    (hierarchy,) = find_hierarchies(frozenset(("cpu",)))
    group = hierarchy.top / f"bench-{site.process.pid}"
    refused = hierarchy.version.prepare(hierarchy.top, hierarchy.controllers, False)
    if refused:
        raise OSError(f"no control group can be made: {refused}")
    group.mkdir()
    quota = round(SHARE * PERIOD)
    try:
        if hierarchy.version is V2:
            (group / "cpu.max").write_text(f"{quota} {PERIOD}")
        else:
            (group / "cpu.cfs_period_us").write_text(f"{PERIOD}")
            (group / "cpu.cfs_quota_us").write_text(f"{quota}")
        (group / "cgroup.procs").write_text(f"{site.process.pid}")
        yield
    finally:
        (hierarchy.top / "cgroup.procs").write_text(f"{site.process.pid}")
        group.rmdir()


def measure_scaling(sites: list[Site], token: str) -> None:
    def count(some: list[Site]) -> float:
        processes = [psutil.Process(site.process.pid) for site in some]
        clients = CLIENTS * len(some)
        began, before = time.monotonic(), read_processor(processes)
        run_clients(lambda: call_in_turn(some, token, LIMITED_CALLS), clients)
        took, used = time.monotonic() - began, read_processor(processes) - before
        rate = clients * LIMITED_CALLS / took
        print(
            f"{f'{len(some)} held to {SHARE:.0%} of a core':34} {rate:.0f} calls a second, {used / took:.2f} cores used"
        )
        return rate

    with ExitStack() as stack:
        for site in sites:
            stack.enter_context(processor_limit(site))
        one, two = count(sites[:1]), count(sites)
    print(f"{'two for one':34} {two / one:.2f} times the calls")


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
        measure_scaling(sites, tokens[0])
        time.sleep(2)
        with measured("an idle server that shares", processes, IDLE * len(sites), "a second"):
            time.sleep(IDLE)
        with measured("a session, one stream included", processes, SESSIONS * APPS, "a session"):
            measure_memory(redis, sites, tokens)
        with measured("a new access token", processes, REFRESHES, "a token"):
            for number in range(REFRESHES):
                status, grants[0] = refreshed(sites[number % 2], apps[0], grants[0])
                assert status == 200


def measure_alone(folder: Path, postgres: Postgres) -> None:
    """Compare one server that shares with one that does not, in turn."""
    assert run(folder, "user", "add", "ada", "--state", "state", stdin=PASSWORD).returncode == 0
    (folder / "replicas").mkdir()
    with ExitStack() as stack:
        node = stack.enter_context(running_node(folder / "node", "--sandbox", "none"))
        alone = Site(folder, *PROBE, *OPTIONS, "--node", str(node.address), workspace=False)
        stack.callback(alone.kill)
        replicas = stack.enter_context(running_replicas(folder / "replicas", postgres, *OPTIONS, count=1))
        assert manage(replicas, "user", "add", "ada", stdin=PASSWORD).returncode == 0
        sites = {"alone": alone, "shared": replicas.sites[0]}
        tokens = {name: granted(site, registered(site))["access_token"] for name, site in sites.items()}
        spent: dict[str, list[float]] = {name: [] for name in sites}
        for _ in range(1 + ROUNDS):  # the first is to be warm
            for name, site in sites.items():
                process = [psutil.Process(site.process.pid)]
                before = read_processor(process)
                run_clients(lambda site=site, token=tokens[name]: call_in_turn([site], token))  # type: ignore[misc]
                spent[name].append((read_processor(process) - before) / (CLIENTS * CALLS))
        figures = {name: statistics.median(each[1:]) for name, each in spent.items()}
        print(f"{'a call, one server with a file':34} servers {figures['alone'] * 1e6:7.1f} us a call")
        print(f"{'a call, one server that shares':34} servers {figures['shared'] * 1e6:7.1f} us a call")
        print(
            f"{'one that shares for one with a file':34} {figures['shared'] / figures['alone']:.2f} times the processor"
        )


def main() -> None:
    with running_postgres() as postgres:
        for _ in range(2):
            with tempfile.TemporaryDirectory() as alone:
                measure_alone(Path(alone), postgres)
            with tempfile.TemporaryDirectory() as shared:
                measure_shared(Path(shared), postgres)


if __name__ == "__main__":
    main()

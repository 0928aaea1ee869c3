"""Official clients that call while their servers are killed or replaced. They create todos and set callbacks, and note
what was acknowledged and what failed."""

import asyncio
import contextlib
import json
import os
import subprocess
import time
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from mcp import Client, types
from mcp.client.streamable_http import streamable_http_client
from mcp.shared._httpx_utils import create_mcp_http_client

from tests.clients.raw_client import PATIENCE, STATELESS
from tests.interop.node import FOLDER, node, package
from tests.servers.postgres import Postgres

if TYPE_CHECKING:
    from tests.servers.replicas import Replicas

MODES = ("legacy", STATELESS)
CALLBACKS = 24  # each so many, a call sets a callback in place of creating a todo
GONE = ("404", "session")  # in the error of a client whose session is lost
FIRED = 12.0  # seconds in which the last callbacks fire


@dataclass
class Report:
    """What a client tried, what was acknowledged, and its errors as (seconds since the epoch, text)."""

    tried: list[str] = field(default_factory=list)
    acknowledged: list[str] = field(default_factory=list)
    errors: list[tuple[float, str]] = field(default_factory=list)
    sessions: int = 0
    calls: int = 0


def start_clients(
    group: asyncio.TaskGroup, replicas: "Replicas", ending: asyncio.Event
) -> dict[str, "asyncio.Task[Report]"]:
    """Start both SDKs' clients in both eras, each as a person of its own."""
    package("@modelcontextprotocol/client")
    clients = dict[str, asyncio.Task[Report]]()
    for mode in MODES:
        for kind, live in (("python", live_in_python), ("typescript", live_in_typescript)):
            name = f"{kind}-{mode[:4]}"
            clients[name] = group.create_task(
                live(mode, f"{replicas.public_url}/mcp", replicas.token(name), name, ending)
            )
    return clients


async def check_results(reports: dict[str, Report], replicas: "Replicas", postgres: Postgres) -> None:
    """Check that nothing acknowledged is lost or doubled."""
    await asyncio.sleep(FIRED)
    todos, fired = await asyncio.to_thread(read_results, replicas, postgres)
    for name, report in reports.items():
        errors = Counter(text[:120] for _, text in report.errors)
        print(
            f"{name}: {len(report.acknowledged)} acknowledged, {report.calls} calls, {report.sessions} sessions", errors
        )
    print(sum(todos.values()), "todos", sum(fired.values()), "callbacks")
    tried = {key for report in reports.values() for key in report.tried}
    acknowledged = {key for report in reports.values() for key in report.acknowledged}
    callbacks = {key for key in tried if is_callback(key)}
    assert acknowledged - callbacks <= set(todos) <= tried - callbacks
    assert acknowledged & callbacks <= set(fired) <= callbacks
    assert set((todos + fired).values()) == {1}


def is_callback(key: str) -> bool:
    return int(key.rpartition("-")[2]) % CALLBACKS == CALLBACKS // 2


async def live_in_python(mode: str, url: str, token: str, name: str, ending: asyncio.Event) -> Report:
    """Call with the Python SDK until the end."""
    report = Report()
    count = 0
    while not ending.is_set():
        try:
            async with contextlib.AsyncExitStack() as stack:
                http = await stack.enter_async_context(
                    create_mcp_http_client(headers={"Authorization": f"Bearer {token}"})
                )
                client = await stack.enter_async_context(
                    Client(streamable_http_client(url, http_client=http), mode=mode)
                )
                report.sessions += 1
                while not ending.is_set():
                    key, count = f"{name}-{count}", count + 1
                    try:
                        await call_twice(client, report, key, count - 1)
                    except Exception as error:  # counted
                        report.errors.append((time.time(), str(error)))
                        if any(word in str(error) for word in GONE):
                            break
                        await asyncio.sleep(0.3)
        except Exception as error:  # counted
            report.errors.append((time.time(), f"connection: {error!r}"))
            await asyncio.sleep(0.3)
    return report


async def call_twice(client: Client, report: Report, key: str, count: int) -> None:
    report.tried.append(key)
    if is_callback(key):
        words: dict[str, Any] = {"action": "set", "message": key, "delay_seconds": 3, "repeat_count": 1}
        await call(client, report, "SetCallback", words)
    else:
        await call(client, report, "TaskManager", {"action": "create", "query": "", "text": key})
    report.acknowledged.append(key)
    await call(client, report, "wait", {"seconds": 1.2 if count % 5 == 0 else 0.1})


async def call(client: Client, report: Report, tool: str, arguments: dict[str, Any]) -> None:
    async with asyncio.timeout(PATIENCE):
        result = await client.call_tool(tool, arguments)
    text = "".join(block.text for block in result.content if isinstance(block, types.TextContent))
    if result.is_error:
        raise RuntimeError(text)
    report.calls += 1


async def live_in_typescript(mode: str, url: str, token: str, name: str, ending: asyncio.Event) -> Report:
    """Call with the TypeScript SDK until the end."""
    process = await asyncio.create_subprocess_exec(
        *(node(), str(FOLDER / "surviving_client.mjs"), mode, url, token, name),
        env={"PATH": os.environ["PATH"]},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    try:
        await ending.wait()
        output, _ = await asyncio.wait_for(process.communicate(b"\n"), 2 * PATIENCE)
    finally:
        if process.returncode is None:
            process.kill()
    report = json.loads(output)
    report["errors"] = [(error["at"], error["text"]) for error in report["errors"]]
    return Report(**report)


def read_results(replicas: "Replicas", postgres: Postgres) -> tuple[Counter[str], Counter[str]]:
    """Return the todos and the fired callbacks in the database."""
    database = replicas.database.partition("?")[0].rpartition("/")[2]
    return (
        Counter(postgres.run_sql("SELECT name FROM task", database=database).splitlines()),
        Counter(postgres.run_sql("SELECT message FROM firing", database=database).splitlines()),
    )

"""Faults of isolated plugins affect only the plugin."""

import asyncio
import contextlib
import json
import os
import re
import signal
import time
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.clients.raw_client import PATIENCE, ROOT, Refusal, eventually, processes_with
from tests.servers.isolated_plugins import CRASHING, Start, hosts, isolated, plugin_folder, resident, status
from toolgate.server.app.app import App
from toolgate.server.calls.client import NoClient
from toolgate.server.config.load import load
from toolgate.server.plugins.isolation.plugin import IsolatedPlugin, Isolation
from toolgate.tools import Context, ResourceLink, Text
from toolgate.tools.api.completion import Completion


def test_a_crash_costs_the_calls_in_the_process_and_the_next_call_restarts_it(start: Start, tmp_path: Path) -> None:
    server = isolated(start, tmp_path, CRASHING)
    first = server.text("pid")
    other = server.begin("tools/call", {"name": "sleep", "arguments": {}}, progressToken="other")
    server.wait(lambda said: said.get("method") == "notifications/progress")

    assert server.error("crash") == "plugin 'it' crashed (exit status 7)"
    assert server.result(other)["content"][0]["text"] == "plugin 'it' crashed (exit status 7)"
    assert not Path(f"/proc/{first}").exists()  # not even as a zombie
    assert server.text("pid") != first
    assert server.error("shot") == "plugin 'it' crashed (signal SIGSEGV)"
    assert "crashed: exit status 7" in server.log()
    last = server.text("pid")
    server.close()
    assert not Path(f"/proc/{last}").exists()


def test_what_a_process_started_ends_with_it(start: Start, tmp_path: Path) -> None:
    body = """
    import subprocess
    @tool
    async def leave() -> str:
        "Start something, and crash."
        subprocess.Popen(["sleep", "86391.5"])
        os._exit(1)
    """
    server = isolated(start, tmp_path, body)

    assert "crashed" in server.error("leave")
    assert eventually(lambda: not processes_with("86391.5"))


@pytest.mark.parametrize("end", ["close", "kill", "edit"])
def test_nothing_a_plugin_started_outlives_its_plugin_or_the_server(start: Start, tmp_path: Path, end: str) -> None:
    body = """
    import subprocess
    @tool
    async def spread() -> list[int]:
        "Start something, and something in a session of its own."
        started = [subprocess.Popen(["sleep", "600"], start_new_session=own).pid for own in (False, True)]
        orphan = subprocess.run(["setsid", "sh", "-c", "sleep 600 >&- & echo $!"], stdout=subprocess.PIPE)
        return [*started, int(orphan.stdout)]
    """
    server = isolated(start, tmp_path, body)
    started = json.loads(server.text("spread"))
    assert all(alive(pid) for pid in started)

    if end == "close":
        server.close()
        assert not any(alive(pid) for pid in started)
    elif end == "kill":
        server.process.send_signal(signal.SIGKILL)
        server.process.wait(20)
    else:
        plugin_folder(tmp_path, body + "\n    # edited\n")
    assert eventually(lambda: not any(alive(pid) for pid in started))


def alive(pid: int) -> bool:
    return "\nState:\tZ" not in status(pid)


def test_a_guard_that_is_stopped_keeps_no_process(start: Start, tmp_path: Path) -> None:
    server = isolated(start, tmp_path, CRASHING)
    pid = int(server.text("pid"))
    (guard,) = hosts(server)

    os.kill(guard, signal.SIGSTOP)
    plugin_folder(tmp_path, CRASHING + "\n    # edited\n")
    assert eventually(lambda: not alive(pid) and not alive(guard))


def test_a_process_that_dies_three_times_in_a_row_is_left_alone(start: Start, tmp_path: Path) -> None:
    server = isolated(start, tmp_path, CRASHING)

    for _ in range(3):
        assert "crashed" in server.error("crash")
    assert re.fullmatch(r"plugin 'it' crashed 3 times in a row: not started for \d+ s", server.error("pid"))


def test_a_cancellation_reaches_the_function_and_its_clean_up_the_client(start: Start, tmp_path: Path) -> None:
    server = isolated(start, tmp_path, CRASHING)
    pid = server.text("pid")
    call = server.begin("tools/call", {"name": "sleep", "arguments": {}}, progressToken="it")
    server.wait(lambda said: said.get("method") == "notifications/progress")

    server.notify("notifications/cancelled", {"requestId": call})
    server.wait(lambda said: said.get("params", {}).get("data") == "cleaned up")
    assert server.text("pid") == pid


def test_a_function_that_blocks_delays_no_other_call_and_is_killed_when_cancelled(start: Start, tmp_path: Path) -> None:
    server = isolated(start, tmp_path, CRASHING)
    pid = server.text("pid")
    other = server.begin("tools/call", {"name": "sleep", "arguments": {}}, progressToken="other")
    call = server.begin("tools/call", {"name": "block", "arguments": {}}, progressToken="it")
    server.wait(lambda said: said.get("params", {}).get("progressToken") == "it")
    server.request("ping")

    server.notify("notifications/cancelled", {"requestId": call})
    began = time.monotonic()
    stopped = server.result(other)
    assert stopped["isError"] is True
    assert stopped["content"][0]["text"] == "plugin 'it' was stopped: a call in it did not react to being cancelled"
    assert 1.0 < time.monotonic() - began < 10.0
    assert server.text("pid") != pid


def test_a_call_that_blocks_is_stopped_when_it_is_held_too_long(start: Start, tmp_path: Path) -> None:
    server = isolated(start, tmp_path, CRASHING, "--hold", "1")

    assert server.error("block") == "block took too long and was stopped"
    assert server.text("pid")


@pytest.mark.parametrize("block", [False, True])
def test_the_process_ends_with_a_server_that_is_killed(start: Start, tmp_path: Path, block: bool) -> None:
    server = isolated(start, tmp_path, CRASHING)
    pid = int(server.text("pid"))
    if block:
        server.begin("tools/call", {"name": "block", "arguments": {}}, progressToken="it")
        server.wait(lambda said: said.get("method") == "notifications/progress")

    server.process.send_signal(signal.SIGKILL)
    server.process.wait(20)
    assert eventually(lambda: not Path(f"/proc/{pid}").exists() or "\nState:\tZ" in status(pid))


def test_a_plugin_that_fails_in_its_process_is_named_and_leaves_none(start: Start, tmp_path: Path) -> None:
    home = plugin_folder(tmp_path, "raise RuntimeError('broken indeed')", "bad")
    plugin_folder(tmp_path, "os._exit(3)", "worse")
    server = start("-p", str(home), "--isolate-plugins")

    server.request("tools/list")
    assert eventually(lambda: "broken indeed" in server.log() and "exit status 3" in server.log())
    assert eventually(lambda: not hosts(server))


HOSTILE = """
    import json, struct, threading
    from toolgate.tools import tool
    SOCKET = int(sys.argv[1])

    def say(*message):
        data = json.dumps(message).encode()
        os.write(SOCKET, struct.pack(">I", len(data)) + data)

    @tool
    async def raw(data: str) -> str:
        "Say anything."
        os.write(SOCKET, bytes.fromhex(data))
        await asyncio.sleep(60)

    @tool
    async def meddle(messages: list) -> str:
        "Say anything well formed."
        for message in messages:
            say(*message)
        return "said"

    @tool
    async def flood(ctx: Context) -> str:
        "Never stop."
        await ctx.progress(1)
        while True:
            for _ in range(100):
                await ctx.progress(2, None, "x" * 10_000)
            await asyncio.sleep(0)
"""


def test_what_a_plugin_says_wrongly_costs_its_call_and_not_its_process(start: Start, tmp_path: Path) -> None:
    body = """
    @tool
    async def wrong(what: str, ctx: Context) -> int:
        "Use the API wrongly."
        if what == "log":
            await ctx.log("error", "words", logger=5)
        if what == "level":
            await ctx.log("loud", "words")
        if what == "progress":
            await ctx.progress(1, message=5)
        if what == "numbers":
            await ctx.progress(float("nan"))
            await ctx.progress(10**400)
        if what == "method":
            await ctx.todos.create(5)
        return os.getpid()
    """
    server = isolated(start, tmp_path, body)
    pid = server.text("wrong", {"what": "nothing"})

    for what in ("log", "level", "progress", "numbers", "method"):
        with pytest.raises(Refusal):
            server.call("wrong", {"what": what}, progressToken=what)
    assert server.text("wrong", {"what": "nothing"}) == pid


@pytest.mark.parametrize(
    "data", ["ffffffff", "00000003" + b"abc".hex(), "00000002" + b"[]".hex(), "00000004" + b"null".hex()]
)
def test_a_process_that_breaks_the_rules_is_killed(start: Start, tmp_path: Path, data: str) -> None:
    server = isolated(start, tmp_path, HOSTILE)

    assert "plugin 'it' was stopped: its process sent " in server.error("raw", {"data": data})
    assert server.text("meddle", {"messages": []}) == "said"


def test_what_concerns_no_call_under_way_is_not_done(start: Start, tmp_path: Path) -> None:
    server = isolated(start, tmp_path, HOSTILE)
    messages: list[Any] = [
        ["note", 99, "log", {"level": "error", "data": "forged", "logger": None}],
        ["request", 99, 1000, "tasks.create", {"name": "forged"}],
        ["request", 1, 1001, "workspace.close", {"grace": 0}],
        ["ended", 98, {"content": []}, None, [], False, None, None],
        ["withdrawn", 99, 3],
        ["heard", 99],
    ]

    assert server.text("meddle", {"messages": messages}) == "said"
    assert server.text("meddle", {"messages": [["note", 1, "log", {"level": "error", "data": "late", "logger": None}]]})
    assert server.text("Bash", {"command": "echo alive"}).strip() == "alive"
    assert "forged" not in server.text("TaskManager", {"action": "list", "query": ""})
    assert server.notes("notifications/message") == []


def test_a_flood_of_progress_costs_the_server_no_memory_and_no_answers(start: Start, tmp_path: Path) -> None:
    server = isolated(start, tmp_path, HOSTILE)
    before = resident(server.process.pid)
    call = server.begin("tools/call", {"name": "flood", "arguments": {}}, progressToken="flood")
    server.wait(lambda said: said.get("method") == "notifications/progress")

    for _ in range(20):
        server.request("ping")
    server.notify("notifications/cancelled", {"requestId": call})
    assert server.text("meddle", {"messages": []}) == "said"
    assert resident(server.process.pid) - before < 60 * 2**20


def test_a_result_that_is_too_large_is_refused_and_says_so(start: Start, tmp_path: Path) -> None:
    server = start("-p", str(ROOT / "tests" / "plugins"), "--isolate-plugins")

    assert "too much for a plugin's own process" in server.error("large", {"size": 70_000_000})
    assert server.text("echo", {"text": "still here"}) == "still here"


ALONE = """
    from pathlib import Path
    @tool
    async def follow(path: str, ctx: Context) -> str:
        "Wait for two changes."
        seen = []
        async for change in ctx.watch_path(Path(path)):
            seen.append(change)
            if len(seen) == 2:
                break
        return f"{len(seen)} changes"

    @tool
    async def crash() -> str:
        "Crash."
        os._exit(7)

    @resource("news://{name}")
    def news(name: str) -> str:
        "News."
        return name

    @news.listing
    def listing() -> list:
        return []

    @news.watching
    async def watch(name: str):
        yield
        await asyncio.sleep(0.1)
        os._exit(3)
"""


@contextlib.asynccontextmanager
async def alone(folder: Path, rest: float = 30.0) -> AsyncIterator[tuple[Mapping[str, Any], Context]]:
    """Return the plugin's parts by key, and a Context to call them with."""
    app = App(load({"state": str(folder / "state"), "workspace": str(folder)}, {"PATH": os.environ["PATH"]}))
    isolation = Isolation(app.config.command_environment, rest=rest)
    try:
        async with asyncio.timeout(PATIENCE):
            plugin = await isolation.load(plugin_folder(folder, ALONE) / "it.py")
            belongings = msgspec.structs.replace(app.host.server().services.of_principal("local"), watch_path=changes)
            yield {part.key: part for part in plugin.parts}, Context(belongings, NoClient())
    finally:
        await isolation.close()
        assert not isolation.processes
        await app.close()


async def changes(path: Path) -> AsyncIterator[object]:
    for _ in range(3):
        yield path


def test_changes_of_files_reach_the_process(tmp_path: Path) -> None:
    async def run() -> None:
        async with alone(tmp_path) as (parts, context):
            assert (await parts["follow"].run({"path": "/any"}, context)).content == [Text("2 changes")]

    asyncio.run(run())


def test_what_a_process_suggests_and_lists_is_bounded_and_sound(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def answer(plugin: IsolatedPlugin, verb: str, *_: object) -> object:
        """As a process that does not keep to what its own end checks would."""
        links = [ResourceLink("news://a", "a"), ResourceLink("no uri", "b"), ResourceLink("news://c", "")]
        return {"complete": Completion(["x"] * 1_000), "list": links}[verb]

    async def run() -> None:
        async with alone(tmp_path) as (parts, context):
            monkeypatch.setattr(IsolatedPlugin, "call", answer)
            far = parts["news://{name}"]
            assert await far.completions.complete("name", "", {}, context) == Completion(["x"] * 100, None, True)
            for _ in range(2):
                assert await far.list_links(context) == [ResourceLink("news://a", "a")]

    asyncio.run(run())
    assert sum("is left out" in record.message for record in caplog.records) == 1


def test_after_its_rest_a_process_is_started_again(tmp_path: Path) -> None:
    async def run() -> None:
        async with alone(tmp_path, rest=0.5) as (parts, context):
            said = [(await parts["crash"].run({}, context)).content[0].text for _ in range(4)]
            assert ["3 times in a row" in text for text in said] == [False, False, False, True]
            while "3 times" in said[-1]:  # its rest is half a second
                said.append((await parts["follow"].run({"path": "/any"}, context)).content[0].text)
            assert said[-1] == "2 changes"

    asyncio.run(run())


def test_a_watch_outlives_its_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("toolgate.server.plugins.isolation.plugin.RESUME", 0.05)

    async def run() -> None:
        async with alone(tmp_path) as (parts, context):
            watch = parts["news://{name}"].watch({"name": "a"}, context)
            for _ in range(3):  # one of the first process, one for its end, one of the next
                await anext(watch)
            await watch.aclose()

    asyncio.run(run())

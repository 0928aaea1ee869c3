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
from toolgate.server.features.mounts.plugins.data import LINKS
from toolgate.server.features.mounts.plugins.loader import Isolation
from toolgate.server.features.mounts.plugins.plugin import IsolatedPlugin
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
        server.process.wait(60)
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
    server.process.wait(60)
    assert eventually(lambda: not Path(f"/proc/{pid}").exists() or "\nState:\tZ" in status(pid))


def test_a_plugin_that_fails_in_its_process_is_named_and_leaves_none(start: Start, tmp_path: Path) -> None:
    home = plugin_folder(tmp_path, "raise RuntimeError('broken indeed')", "bad")
    plugin_folder(tmp_path, "os._exit(3)", "worse")
    server = start("-p", str(home), "--isolate-plugins")

    server.request("tools/list")
    assert eventually(lambda: "broken indeed" in server.log() and "exit status 3" in server.log())
    assert eventually(lambda: not hosts(server))


HOSTILE = """
    import json
    from toolgate.tools import tool

    def find_stream():
        "Return the socket to the server: the only one with two descriptors."
        numbers = {}
        for number in os.listdir("/proc/self/fd"):
            try:
                numbers.setdefault(os.readlink(f"/proc/self/fd/{number}"), []).append(int(number))
            except OSError:
                pass
        return next(found[0] for link, found in numbers.items() if link.startswith("socket:") and len(found) == 2)

    STREAM = find_stream()

    @tool
    async def raw(line: str, times: int = 1) -> str:
        "Say anything."
        for _ in range(times):
            while True:
                try:
                    os.write(STREAM, line.encode("latin-1") + b"\\n")
                    break
                except BlockingIOError:
                    await asyncio.sleep(0.001)
        return "said"

    @tool
    async def meddle(messages: list, ctx: Context) -> int:
        "Say anything well formed."
        for message in messages:
            os.write(STREAM, json.dumps({"jsonrpc": "2.0", **message}).encode() + b"\\n")
        return ctx._peer._id

    @tool
    async def wait(ctx: Context) -> str:
        "Wait."
        await ctx.progress(1)
        await asyncio.sleep(60)

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


def test_rubbish_that_a_plugin_writes_is_left_out(start: Start, tmp_path: Path) -> None:
    server = isolated(start, tmp_path, HOSTILE)
    for line in ("\xff\xff", "words", "null", "[]", "{}", '{"jsonrpc": "2.0", "id": [], "method": 5}'):
        assert server.text("raw", {"line": line}) == "said", line
        assert server.text("raw", {"line": line, "times": 20}) == "said", line


def test_a_process_that_writes_nothing_but_rubbish_is_stopped(start: Start, tmp_path: Path) -> None:
    server = isolated(start, tmp_path, HOSTILE)
    call = server.begin("tools/call", {"name": "wait", "arguments": {}}, progressToken="it")
    server.wait(lambda said: said.get("method") == "notifications/progress")

    server.begin("tools/call", {"name": "raw", "arguments": {"line": "rubbish", "times": 1_002}})
    stopped = "plugin 'it' was stopped: it sent something that is no JSON-RPC message"
    assert server.result(call)["content"][0]["text"] == stopped
    assert server.text("raw", {"line": ""}) == "said"


def test_what_concerns_no_call_under_way_is_not_done(start: Start, tmp_path: Path) -> None:
    server = isolated(start, tmp_path, HOSTILE)
    ended = int(server.text("meddle", {"messages": []}))

    def request(id: Any, call: int, wanted: str, **arguments: Any) -> dict[str, Any]:
        params = {"name": wanted, "arguments": arguments, "_meta": {"toolgate/request": call}}
        return {"id": id, "method": "toolgate/context", "params": params}

    def notify(method: str, call: int, **params: Any) -> dict[str, Any]:
        return {"method": method, "params": {**params, "_meta": {"toolgate/request": call}}}

    messages = [
        *(notify("notifications/message", call, level="error", data="forged") for call in (99, ended)),
        *(request(1_000 + call, call, "todos.create", name="forged") for call in (99, ended)),
        request(1, ended + 1, "workspace.close", grace=0),
        {"id": 2, "method": "toolgate/context", "params": {"name": "todos.create", "arguments": {"name": "forged"}}},
        {"id": 98, "result": {"content": []}},
        notify("notifications/cancelled", 99, requestId=3),
    ]
    assert int(server.text("meddle", {"messages": messages})) == ended + 1
    assert server.text("Bash", {"command": "echo alive"}).strip() == "alive"
    assert "forged" not in server.text("TaskManager", {"action": "list", "query": ""})
    assert server.notes("notifications/message") == []


def test_a_process_that_requests_too_much_at_once_is_stopped(start: Start, tmp_path: Path) -> None:
    body = """
    @tool
    async def request(count: int, ctx: Context) -> str:
        "Wait for a command so many times at once."
        run = await ctx.workspace.start("sleep 60")
        await asyncio.gather(*(ctx.workspace.wait(run, timeout=60) for _ in range(count)))
        return ""
    """
    server = isolated(start, tmp_path, body)

    stopped = "plugin 'it' was stopped: its process sent too many requests at once"
    assert server.error("request", {"count": 1_001}) == stopped


@pytest.mark.brief("one", "id1")  # of a wrong kind, and no id at all
@pytest.mark.parametrize("id", ["one", [], {}, 1.5])
def test_a_request_without_a_number_ends_its_process(start: Start, tmp_path: Path, id: Any) -> None:
    server = isolated(start, tmp_path, HOSTILE)
    call = int(server.text("meddle", {"messages": []})) + 1

    params = {"name": "todos.all", "arguments": {}, "_meta": {"toolgate/request": call}}
    request = {"id": id, "method": "toolgate/context", "params": params}
    server.call("meddle", {"messages": [request]})
    assert eventually(lambda: "sent a request without a number of its own" in server.log())
    assert int(server.text("meddle", {"messages": []})) > 0


def test_a_flood_of_progress_costs_the_server_no_memory_and_no_answers(start: Start, tmp_path: Path) -> None:
    server = isolated(start, tmp_path, HOSTILE)
    before = resident(server.process.pid)
    call = server.begin("tools/call", {"name": "flood", "arguments": {}}, progressToken="flood")
    server.wait(lambda said: said.get("method") == "notifications/progress")

    for _ in range(20):
        server.request("ping")
    server.notify("notifications/cancelled", {"requestId": call})
    assert int(server.text("meddle", {"messages": []})) > 0
    assert resident(server.process.pid) - before < 60 * 2**20


def test_a_flood_of_progress_delays_no_answer_to_its_process(start: Start, tmp_path: Path) -> None:
    body = """
    @tool
    async def flood(ctx: Context) -> str:
        "Tell something without end."
        await ctx.progress(1)
        while True:
            for _ in range(100):
                await ctx.progress(2, None, "x" * 10_000)
            await asyncio.sleep(0)

    @tool
    async def count(ctx: Context) -> list[int]:
        "Count the to-dos."
        return [len(await ctx.todos.all()), os.getpid()]
    """
    server = isolated(start, tmp_path, body)
    before = server.text("count")
    call = server.begin("tools/call", {"name": "flood", "arguments": {}}, progressToken="flood")
    server.wait(lambda said: said.get("method") == "notifications/progress")

    assert server.text("count") == before
    server.notify("notifications/cancelled", {"requestId": call})
    assert server.text("count") == before


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
        assert not isolation.processes.running
        await app.close()


async def changes(path: Path, since: float | None) -> AsyncIterator[object]:
    assert since is None
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
    async def answer(plugin: IsolatedPlugin, method: str, *_: object) -> dict[str, bytes]:
        """As a process that does not keep to what its own end checks would."""
        links = [ResourceLink("news://a", "a"), ResourceLink("no uri", "b"), ResourceLink("news://c", "")]
        answers = {"completion/complete": {"completion": Completion(["x"] * 1_000)}, LINKS: {"resources": links}}
        return {name: msgspec.json.encode(value) for name, value in answers[method].items()}

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
    monkeypatch.setattr("toolgate.server.features.mounts.plugins.plugin.RESUME", 0.05)

    async def run() -> None:
        async with alone(tmp_path) as (parts, context):
            watch = parts["news://{name}"].watch({"name": "a"}, context)
            for _ in range(3):  # one of the first process, one for its end, one of the next
                await anext(watch)
            await watch.aclose()

    asyncio.run(run())

"""stdio: large messages, slow readers, shutdown, and stray output."""

import asyncio
import fcntl
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.clients.raw_client import COMMAND, PATIENCE, Server, children, eventually, processes_with
from toolgate.server.protocol.messages import Result
from toolgate.transports.stdout_channel import StdoutChannel

Start = Callable[..., Server]
MIB = 2**20
ROOT = Path(__file__).resolve().parents[2]


def memory(pid: int) -> int:
    """Return the resident memory in bytes."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS"):
            return int(line.split()[1]) * 1024
    raise AssertionError("no VmRSS")


def test_a_large_message_in_either_direction_does_not_hold_up_others(probe: Start) -> None:
    server = probe()
    text = "é" * (4 * MIB)  # 8 MiB of UTF-8
    large = server.begin("tools/call", {"name": "echo", "arguments": {"text": text}})
    small = server.begin("tools/call", {"name": "echo", "arguments": {"text": "small"}})
    assert server.result(small)["content"][0]["text"] == "small"
    assert server.result(large)["content"][0]["text"] == text


def test_a_line_behind_one_with_a_large_answer_is_not_forgotten(probe: Start) -> None:
    """A fast client takes the large answer at once: no later event would start the next line."""
    server = probe()
    for n in range(0, 40, 2):
        calls = (("large", {"size": 4 * MIB + 1}, n), ("echo", {"text": "small"}, n + 1))
        lines = (
            {"jsonrpc": "2.0", "id": f"{id}", "method": "tools/call", "params": {"name": tool, "arguments": arguments}}
            for tool, arguments, id in calls
        )
        server.write(b"".join(json.dumps(line).encode() + b"\n" for line in lines))
        assert server.result(f"{n + 1}", 5)["content"][0]["text"] == "small"
        server.messages.clear()


def test_an_answer_that_has_been_written_takes_no_memory() -> None:
    async def main() -> int:
        source, sink = os.pipe()
        output = StdoutChannel(asyncio.get_running_loop(), sink)
        tracemalloc.start()
        try:
            output.send(Result(1, "x" * 8 * MIB))
            with open(source, "rb") as answers, open(sink, "wb"):
                await asyncio.to_thread(lambda: len(answers.readline()))
                await output.drain(PATIENCE)
                return tracemalloc.get_traced_memory()[0]
        finally:
            tracemalloc.stop()

    assert asyncio.run(main()) < MIB


@pytest.mark.skipif(sys.platform != "linux", reason="other systems size their pipes themselves")
def test_pipes_hold_more_than_the_answers_to_a_batch(start: Start) -> None:
    server = start()
    server.request("ping")
    for end in (server.process.stdin, server.process.stdout):
        assert fcntl.fcntl(end, fcntl.F_GETPIPE_SZ) == MIB


NEEDLESS = {  # before the second answer: each takes milliseconds and memory
    *("anyio", "click", "httpx", "mimetypes", "multiprocessing", "shutil", "sqlalchemy", "sqlite3", "starlette"),
    *("dataclasses", "importlib.resources", "random", "tempfile", "watchfiles", "yaml", "zlib"),
    "toolgate.tools.reading.search.search",
    "toolgate.tools.reading.workers.pool",
    "toolgate.tools.workspace.local_workspace",
    "toolgate.tools.workspace.output.spool",
    "toolgate.tools.workspace.processes.zygote",
}


def test_a_start_loads_nothing_that_the_first_answers_do_not_need(tmp_path: Path) -> None:
    client = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "test", "version": "1"}}
    messages = (
        {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": client},
        {"jsonrpc": "2.0", "method": "notifications/initialized"},
        {"jsonrpc": "2.0", "id": 2, "method": "tools/list", "params": {}},
    )
    command = [sys.executable, "-X", "importtime", "-m", "toolgate.server", "--state", str(tmp_path / "state")]
    told = subprocess.run(
        command,
        input="".join(json.dumps(message) + "\n" for message in messages),
        env={**os.environ, "HOME": str(tmp_path)},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
    )
    assert [json.loads(line)["id"] for line in told.stdout.splitlines()] == [1, 2]
    loaded = {line.rpartition("|")[2].strip() for line in told.stderr.splitlines()}
    assert {"asyncio", "toolgate.server.app.app"} <= loaded
    assert loaded & NEEDLESS == set()


def test_a_call_of_a_server_whose_program_was_removed_says_so(tmp_path: Path) -> None:
    """As after an upgrade: what the first answers do not need is loaded later."""
    for room in ("server", "tools", "transports"):
        shutil.copytree(ROOT / room, tmp_path / "toolgate" / room, ignore=shutil.ignore_patterns("__pycache__"))
    (tmp_path / "toolgate" / "__init__.py").touch()  # it comes before one that is installed
    command = [sys.executable, "-m", "toolgate.server", "--state", str(tmp_path / "state")]
    pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
    env = {**os.environ, "PYTHONPATH": str(tmp_path), "PYTHONSAFEPATH": "1"}
    with subprocess.Popen(command, env=env, cwd=tmp_path, text=True, **pipes) as process:
        assert process.stdin is not None and process.stdout is not None

        def ask(method: str, **params: Any) -> Any:
            process.stdin.write(json.dumps({"jsonrpc": "2.0", "id": 1, "method": method, "params": params}) + "\n")
            process.stdin.flush()
            return json.loads(process.stdout.readline())

        ask("initialize", protocolVersion="2025-11-25", capabilities={}, clientInfo={"name": "test", "version": "1"})
        shutil.rmtree(tmp_path / "toolgate" / "tools")
        answer = ask("tools/call", name="ReadDocs", arguments={"url": "http://127.0.0.1/"})
        process.stdin.close()
    assert re.fullmatch(
        "internal error, reference [0-9a-f]{12}; the server's program has changed or was removed since it started: "
        "restart it",
        answer["error"]["message"],
    )


def test_awkward_unicode_arrives_on_one_line(probe: Start) -> None:
    server = probe()
    assert server.text("odd") == "a?b\n\u2028\r\0é"
    for text in ("\u2028\u2029\x85\x0b\x0c", "\U0001f600", '"\\/\b', ""):
        assert server.text("echo", {"text": text}) == text


def test_blank_lines_and_carriage_returns_are_taken(start: Start) -> None:
    server = start()
    server.write(b'\n\r\n  \n{"jsonrpc":"2.0","id":"cr","method":"ping"}\r\n')
    assert server.result("cr") == {}


def test_a_last_line_without_a_line_break_is_answered(tmp_path: Path) -> None:
    answer = subprocess.run(
        [COMMAND, "--state", str(tmp_path / "state")],
        input=b'{"jsonrpc":"2.0","id":1,"method":"ping"}',
        capture_output=True,
        cwd=tmp_path,
        timeout=30,
        check=True,
    )
    assert json.loads(answer.stdout) == {"jsonrpc": "2.0", "id": 1, "result": {}}


def test_input_from_a_file_and_output_to_a_file_work(tmp_path: Path) -> None:
    (tmp_path / "in").write_text(
        '{"jsonrpc":"2.0","id":1,"method":"ping"}\n' * 1 + '{"jsonrpc":"2.0","id":2,"method":"ping"}\n'
    )
    with (tmp_path / "in").open("rb") as source, (tmp_path / "out").open("wb") as sink:
        subprocess.run(
            [COMMAND, "--state", str(tmp_path / "state")],
            stdin=source,
            stdout=sink,
            timeout=30,
            check=True,
            cwd=tmp_path,
        )
    assert [json.loads(line)["id"] for line in (tmp_path / "out").read_text().splitlines()] == [1, 2]


def test_nothing_to_read_ends_well(tmp_path: Path) -> None:
    for source in (subprocess.DEVNULL, None):
        done = subprocess.run(
            [COMMAND, "--state", str(tmp_path / "state")],
            stdin=source if source is not None else subprocess.DEVNULL,
            capture_output=True,
            timeout=30,
            cwd=tmp_path,
        )
        assert (done.returncode, done.stdout) == (0, b"")


def test_stray_output_never_reaches_the_protocol(probe: Start) -> None:
    server = probe()
    assert server.text("shout") == ""
    assert eventually(lambda: all(word in server.log() for word in ("stray print", "stray write", "stray child")))
    assert server.text("echo", {"text": "clean"}) == "clean"


def test_a_client_that_stops_reading_does_not_make_memory_grow(tmp_path: Path) -> None:
    """64 MiB of answers are requested and none is read: the server must stop reading."""
    plugins = Path(__file__).parent.parent / "plugins"
    with (tmp_path / "err").open("wb") as log:
        process = subprocess.Popen(
            [COMMAND, "-p", str(plugins), "--state", str(tmp_path / "state")],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            cwd=tmp_path,
        )
    assert process.stdin and process.stdout
    try:
        hello = {
            "protocolVersion": "2025-11-25",
            "capabilities": {},
            "clientInfo": {"name": "t", "version": "1"},
        }
        first = {"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": hello}
        os.write(process.stdin.fileno(), json.dumps(first).encode() + b"\n")
        process.stdout.readline()
        before = memory(process.pid)
        os.set_blocking(process.stdin.fileno(), False)
        text = "x" * 100_000
        sent = b"".join(
            json.dumps(
                {
                    "jsonrpc": "2.0",
                    "id": n,
                    "method": "tools/call",
                    "params": {"name": "echo", "arguments": {"text": text}},
                }
            ).encode()
            + b"\n"
            for n in range(1, 641)
        )
        waiting = memoryview(sent)
        stuck_since = time.monotonic()
        while waiting and time.monotonic() - stuck_since < 2.0:
            try:
                waiting = waiting[os.write(process.stdin.fileno(), waiting) :]
                stuck_since = time.monotonic()
            except BlockingIOError:
                eventually(lambda: False, 0.05)
        assert waiting, "the server read everything although its answers were unread"
        assert memory(process.pid) - before < 40 * MIB
        os.set_blocking(process.stdin.fileno(), True)

        def rest() -> None:
            os.write(process.stdin.fileno(), waiting) if len(waiting) < 65_536 else process.stdin.write(waiting)
            process.stdin.close()

        import threading

        writer = threading.Thread(target=rest)
        writer.start()
        ids = [json.loads(line)["id"] for line in process.stdout]
        writer.join(30)
        assert sorted(ids) == list(range(1, 641))  # once it reads, it gets them all
        assert process.wait(30) == 0
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


def test_end_of_input_lets_running_calls_finish_within_the_grace(probe: Start) -> None:
    server = probe("--grace", "5")
    id = server.begin("tools/call", {"name": "wait", "arguments": {"seconds": 0.7}})
    assert server.close() == 0
    assert [message["result"]["content"][0]["text"] for message in server.messages if message.get("id") == id] == [
        "waited"
    ]


@pytest.mark.parametrize("how", ["end of input", "SIGTERM", "SIGINT"])
def test_the_end_kills_every_child_and_exits_0(start: Start, how: str) -> None:
    server = start()
    begun = time.monotonic()
    mark = f"86{os.getpid()}.{len(how)}"
    server.begin("tools/call", {"name": "Bash", "arguments": {"command": f"sleep {mark}; true"}})
    server.call("BackgroundBash", {"command": f"(setsid sleep {mark} &) ; sleep {mark}; true"})
    assert eventually(lambda: len(processes_with(mark)) >= 3)
    tree = children(server.process.pid)
    assert tree
    begun = time.monotonic()
    if how == "end of input":
        server.close()
    else:
        server.process.send_signal(getattr(signal, how))
    assert server.process.wait(60) == 0
    assert time.monotonic() - begun < 9  # the grace is 1.5 s
    assert eventually(lambda: not processes_with(mark))


def test_kill_9_of_the_server_takes_its_commands_along(start: Start) -> None:
    server = start()
    mark = f"87{os.getpid()}.5"
    server.call("BackgroundBash", {"command": f"(setsid sleep {mark} &) ; sleep {mark}; true"})
    assert eventually(lambda: len(processes_with(mark)) >= 2)
    server.process.kill()
    server.process.wait()
    assert eventually(lambda: not processes_with(mark))


def test_a_client_that_goes_away_ends_the_server(start: Start) -> None:
    server = start()
    assert server.process.stdout is not None
    server.begin("tools/call", {"name": "Bash", "arguments": {"command": "sleep 0.3; echo over"}})
    os.close(os.dup(server.process.stdout.fileno()))
    assert server.close() == 0


def test_a_second_of_silence_costs_nothing(start: Start) -> None:
    """No polling: an idle server uses nearly no CPU time."""
    server = start()
    server.request("ping")
    eventually(lambda: False, 2.0)  # past what is started late

    def ticks() -> int:
        fields = Path(f"/proc/{server.process.pid}/stat").read_text().rpartition(")")[2].split()
        return int(fields[11]) + int(fields[12])

    before = ticks()
    eventually(lambda: False, 1.5)
    assert ticks() - before <= 2  # hundredths of a second

"""A command that stops its supervisor or zygote prevents neither its own end nor another's."""

import asyncio
import contextlib
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.clients.raw_client import served
from tests.tools.shell_commands import Caller, hosted, living, on_caller, processes, until, wait_for

UP = "up=$(cut -d' ' -f4 /proc/$PPID/stat)"  # the zygote
STOPS = {
    "supervisor": "kill -STOP $PPID",
    "zygote": f"{UP}; kill -STOP $up",
    "both": f"{UP}; kill -STOP $up $PPID",
}
AGAIN_AND_AGAIN = f"{UP}; (while :; do kill -STOP $up $PPID; done) 2>/dev/null & kill -STOP $up $PPID"
WITH_LOOP = {**STOPS, "both, again and again": AGAIN_AND_AGAIN}

stops = pytest.mark.parametrize("stop", STOPS.values(), ids=STOPS)
all_stops = pytest.mark.parametrize("stop", WITH_LOOP.values(), ids=WITH_LOOP)


@pytest.fixture
def mark(request: pytest.FixtureRequest) -> Iterator[str]:
    """Yield a word for the arguments of all processes of a test; leftovers with it are killed."""
    mark = f"{700 + abs(hash(request.node.name)) % 100}.{os.getpid()}"
    yield mark
    left = [(pid, up) for pid, up, _, line in processes() if mark.encode() in line]
    for pid, _ in left:
        os.kill(pid, signal.SIGKILL)
    for up in {up for _, up in left if up > 1}:
        with contextlib.suppress(ProcessLookupError):
            os.kill(up, signal.SIGCONT)


def stopping(stop: str, mark: str) -> str:
    """Return a command that stops its supervisors and stays, with a daemon that ignores SIGTERM."""
    daemon = f"(setsid bash -c 'trap \"\" TERM; touch daemon; while :; do sleep {mark}; done' {mark} &) >/dev/null 2>&1"
    return f"{daemon}; until [ -e daemon ]; do sleep 0.01; done; echo begun; {stop}; touch stopped; sleep {mark}"


async def stopped(me: Caller) -> None:
    await until((me.workspace.root / "stopped").exists)


@all_stops
def test_a_timeout_ends_the_tree(tmp_path: Path, stop: str, mark: str) -> None:
    async def body(me: Caller) -> None:
        began = time.monotonic()
        output = await me.bash(stopping(stop, mark), timeout=500)
        assert time.monotonic() - began < 10
        assert output.is_error and output.structured["timed_out"]
        assert output.structured["stdout_and_stderr"] == "begun\n"
        assert output.structured["task_id"] is None
        assert living(mark) == set()
        assert (await me.call("ListBgTasks")).structured == {"tasks": []}
        assert (await me.bash("echo well")).structured["stdout_and_stderr"] == "well\n"

    on_caller(body, tmp_path)


@all_stops
def test_a_cancellation_ends_the_tree(tmp_path: Path, stop: str, mark: str) -> None:
    async def body(me: Caller) -> None:
        call = asyncio.ensure_future(me.bash(stopping(stop, mark)))
        await stopped(me)
        call.cancel()
        began = time.monotonic()
        with pytest.raises(asyncio.CancelledError):
            await call
        assert time.monotonic() - began < 10
        assert living(mark) == set()

    on_caller(body, tmp_path)


@all_stops
def test_a_kill_ends_the_tree(tmp_path: Path, stop: str, mark: str) -> None:
    async def body(me: Caller) -> None:
        task = (await me.call("BackgroundBash", command=stopping(stop, mark))).structured["task_id"]
        await stopped(me)
        killed = await me.call("KillBgTask", task_id=task)
        assert killed.structured["status"] == "killed"
        assert living(mark) == set()

    on_caller(body, tmp_path)


@pytest.mark.pairs
@all_stops
@pytest.mark.parametrize("ending", ["end of input", "SIGTERM"])
def test_the_servers_end_is_the_trees(tmp_path: Path, stop: str, ending: str, mark: str) -> None:
    with served(tmp_path) as server:
        server.call("BackgroundBash", {"command": stopping(stop, mark)})
        wait_for((tmp_path / "work" / "stopped").exists)
        began = time.monotonic()
        if ending == "SIGTERM":
            server.process.terminate()
        assert server.close() == 0
        assert time.monotonic() - began < 8
        wait_for(lambda: not living(mark))


@stops
def test_killing_the_server_kills_the_tree(tmp_path: Path, stop: str, mark: str) -> None:
    script = f"""
import asyncio, pathlib
from tests.tools.shell_commands import workspace
async def main():
    async with workspace(pathlib.Path({str(tmp_path)!r})) as mine:
        await mine.start({stopping(stop, mark)!r})
        await mine.start({f"sleep {mark}"!r})
        print("up", flush=True)
        await asyncio.sleep(60)
asyncio.run(main())
"""
    host = hosted(script)
    try:
        assert host.stdout is not None and host.stdout.readline() == "up\n"
        wait_for((tmp_path / "root" / "stopped").exists)
        assert living(mark)
    finally:
        host.send_signal(signal.SIGKILL)
        host.communicate()
    wait_for(lambda: not living(mark))


def test_a_command_that_stops_its_supervisor_still_ends_by_itself(tmp_path: Path) -> None:
    async def body(me: Caller) -> None:
        output = await me.bash("kill -STOP $PPID; kill -TTIN $PPID; kill -TSTP $PPID; echo hi; exit 3", timeout=8000)
        assert output.structured["exit_code"] == 3
        assert output.structured["duration_ms"] < 6000

    on_caller(body, tmp_path)


def test_a_command_that_stops_the_zygote_does_not_delay_the_next(tmp_path: Path) -> None:
    async def body(me: Caller) -> None:
        await me.bash(f"{UP}; kill -STOP $up")
        began = time.monotonic()
        for _ in range(3):
            assert (await me.bash("echo well")).structured["stdout_and_stderr"] == "well\n"
        assert time.monotonic() - began < 8  # a silent zygote is given 10 s

    on_caller(body, tmp_path)


def test_orphans_of_a_killed_supervisor_end_though_the_zygote_was_stopped(tmp_path: Path, mark: str) -> None:
    async def body(me: Caller) -> None:
        output = await me.bash(f"{UP}; setsid sleep {mark} & kill -STOP $up; kill -9 $PPID; sleep {mark}")
        assert output.is_error
        await until(lambda: not living(mark))

    on_caller(body, tmp_path)

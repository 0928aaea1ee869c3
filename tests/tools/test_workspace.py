"""The workspace: process trees by id, output by offset, ids and endings on disk, and the door to files."""

import asyncio
import contextlib
import os
import resource
import signal
import socket
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any

import pytest

from toolgate.tools import spool
from toolgate.tools.errors import ToolError
from toolgate.tools.notices import Notices
from toolgate.tools.processes import Processes
from toolgate.tools.workspace import Workspace

ENVIRONMENT = {"PATH": os.environ["PATH"], "HOME": "/", "LANG": "C.UTF-8"}
BOUND = 10.0  # seconds for anything here that must come


@contextlib.asynccontextmanager
async def workspace(folder: Path, notices: Notices | None = None) -> AsyncIterator[Workspace]:
    root = folder / "root"
    root.mkdir(exist_ok=True)
    processes = Processes()
    mine = Workspace(root, folder / "spool", ENVIRONMENT, notices or Notices(), processes=processes)
    try:
        yield mine
    finally:
        await mine.close(0.2)
        await processes.close()


def on_workspace(body: Callable[[Workspace], Coroutine[Any, Any, None]], folder: Path) -> None:
    async def run() -> None:
        async with workspace(folder) as mine:
            await body(mine)

    asyncio.run(run())


async def ran(mine: Workspace, command: str, **how: Any) -> bytes:
    """Run a command to the end of its tree; its output."""
    task = await mine.start(command, **how)
    assert await mine.wait(task, BOUND)
    return await mine.read(task, 0, 2**20)


def processes() -> Iterator[tuple[int, int, str, bytes]]:
    """Every living process: id, parent, state, command line."""
    for path in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            state, parent, *_ = (path / "stat").read_text().rpartition(")")[2].split()
            if state not in "ZX":
                yield int(path.name), int(parent), state, (path / "cmdline").read_bytes()


def living(word: str) -> set[int]:
    return {pid for pid, _, _, line in processes() if word.encode() in line.split(b"\0")}


def children_of(parent: int) -> set[int]:
    """Descendants, by parentage."""
    parents = {pid: up for pid, up, _, _ in processes()}
    found = {parent}
    while more := {pid for pid, up in parents.items() if up in found} - found:
        found |= more
    return found - {parent}


async def until(condition: Callable[[], bool]) -> None:
    """Look again and again, for what nothing announces: another process's doing."""
    async with asyncio.timeout(BOUND):
        while not condition():
            await asyncio.sleep(0.01)


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


def test_output_is_read_by_offset_while_it_grows_and_after(tmp_path: Path) -> None:
    async def body(mine: Workspace) -> None:
        os.mkfifo(mine.root / "go")
        task = await mine.start("printf 0123456789; read -r _ < go; printf ab", background=True)
        assert await mine.grown(task, 0, BOUND) == 10
        assert await mine.read(task, 3, 4) == b"3456"
        assert not await mine.wait_shell(task, 0)
        (mine.root / "go").write_text("\n")
        assert await mine.grown(task, 10, BOUND) == 12
        assert await mine.wait(task, BOUND)
        assert await mine.read(task, 9, 100) == b"9ab"
        assert await mine.size(task) == 12
        assert mine.output_path(task).read_bytes() == b"0123456789ab"

    on_workspace(body, tmp_path)


def test_a_key_given_twice_starts_nothing_twice(tmp_path: Path) -> None:
    async def body(mine: Workspace) -> None:
        first, second = await asyncio.gather(mine.start("echo x >> log", key="k"), mine.start("echo x >> log", key="k"))
        assert first == second
        assert await mine.wait(first, BOUND)
        assert await mine.start("echo x >> log", key="k") == first
        assert await mine.start("true", key="other") != first
        assert (mine.root / "log").read_text() == "x\n"

    on_workspace(body, tmp_path)


def test_ids_are_unique_across_two_servers_on_one_spool_and_go_on_counting(tmp_path: Path) -> None:
    async def run() -> None:
        async with workspace(tmp_path) as one, workspace(tmp_path) as two:
            started = await asyncio.gather(*((one, two)[n % 2].start("true", background=True) for n in range(20)))
            assert sorted(started) == list(range(1, 21))
            for mine in (one, two):
                assert [task.id for task in await mine.list()] == sorted(
                    started[0::2] if mine is one else started[1::2]
                )
        async with workspace(tmp_path) as later:
            assert [task.id for task in await later.list()] == list(range(1, 21))
            for task in range(1, 21):
                await later.forget(task)
        (tmp_path / "spool" / "last-id").read_bytes()
        async with workspace(tmp_path) as latest:
            assert await latest.start("true") == 21

    asyncio.run(run())


def test_a_damaged_count_never_gives_an_id_that_is_there(tmp_path: Path) -> None:
    async def run() -> None:
        async with workspace(tmp_path) as mine:
            tasks = [await mine.start("true", background=True) for _ in range(3)]
            (tmp_path / "spool" / "last-id").write_bytes(b"garbage")
            assert await mine.start("true") == max(tasks) + 1

    asyncio.run(run())


def test_tasks_of_an_earlier_server_stay_readable_and_unended_ones_are_lost(tmp_path: Path) -> None:
    script = f"""
import asyncio, os, pathlib
from tests.tools.test_workspace import ran, workspace
async def main():
    async with workspace(pathlib.Path({str(tmp_path)!r})) as mine:
        await ran(mine, "echo done; exit 3", background=True)
        await mine.start("echo begun; touch begun; sleep 600.{os.getpid()}", background=True)
        print("up", flush=True)
        await asyncio.sleep(60)
asyncio.run(main())
"""
    host = hosted(script)
    try:
        line = host.stdout.readline()  # type: ignore[union-attr]  # it is a pipe
        assert line == "up\n"
        wait_for(lambda: (tmp_path / "root" / "begun").exists())
    finally:
        host.kill()
        host.communicate()
    wait_for(lambda: not living(f"600.{os.getpid()}"))

    async def body(mine: Workspace) -> None:
        first, second = await mine.list()
        assert (first.id, first.status, first.exit_code, first.command) == (1, "exited", 3, "echo done; exit 3")
        assert (second.id, second.status, second.exit_code) == (2, "lost", None)
        assert await mine.take(1, 100) == ("done\n", False)
        assert await mine.take(2, 100) == ("begun\n", False)
        assert (await mine.kill(2)).status == "lost"
        assert await mine.start("true") == 3

    on_workspace(body, tmp_path)
    assert list((tmp_path / "spool").glob("*.lock")) == []


def hosted(script: str) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [sys.executable, "-c", script],
        stdout=subprocess.PIPE,
        text=True,
        cwd=Path(__file__).parents[2],
        env={**ENVIRONMENT, "PYTHONDONTWRITEBYTECODE": "1"},
    )


def wait_for(condition: Callable[[], bool]) -> None:
    asyncio.run(until(condition))


def test_killing_the_server_kills_its_commands_and_their_daemons(tmp_path: Path) -> None:
    mark = f"602.{os.getpid()}"
    command = f"trap '' TERM; (setsid setsid sleep {mark} &) ; sleep {mark} & echo up; sleep {mark}"
    script = f"""
import asyncio, pathlib
from tests.tools.test_workspace import workspace
async def main():
    async with workspace(pathlib.Path({str(tmp_path)!r})) as mine:
        for _ in range(3):
            await mine.start({command!r})
        print("up", flush=True)
        await asyncio.sleep(60)
asyncio.run(main())
"""
    host = hosted(script)
    try:
        assert host.stdout is not None and host.stdout.readline() == "up\n"
        wait_for(lambda: len(living(mark)) == 9)
        below = children_of(host.pid)
        assert len(below) >= 9 + 3 + 1  # sleeps, supervisors, the zygote
    finally:
        host.send_signal(signal.SIGKILL)
        host.communicate()
    began = time.monotonic()
    wait_for(lambda: not living(mark))
    assert time.monotonic() - began < 2
    wait_for(lambda: not below & {pid for pid, *_ in processes()})


def test_two_hundred_megabytes_of_output_cost_no_memory_and_are_capped_with_a_note(tmp_path: Path) -> None:
    async def body(mine: Workspace) -> None:
        await ran(mine, "true")
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        task = await mine.start("head -c 200000000 /dev/zero; echo done >&2", background=True)
        assert await mine.wait(task, 30)
        assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 8 * 1024
        assert (await mine.run(task)).exit_code == 0
        assert await mine.size(task) == spool.MAX_OUTPUT + len(spool.CAPPED)
        assert await mine.read(task, spool.MAX_OUTPUT, 1000) == spool.CAPPED

    on_workspace(body, tmp_path)


def test_the_loop_goes_on_while_a_command_floods_it(tmp_path: Path) -> None:
    async def body(mine: Workspace) -> None:
        flood = await mine.start("exec cat /dev/zero", background=True)
        await mine.grown(flood, 2**20, BOUND)
        assert await ran(mine, "echo well") == b"well\n"
        assert (await mine.kill(flood)).status == "killed"

    on_workspace(body, tmp_path)


def test_a_full_disk_does_not_stop_a_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)

    async def body(mine: Workspace) -> None:
        task = await mine.start("head -c 3000000 /dev/zero && touch done", background=True)
        assert await mine.wait(task, BOUND)
        assert (mine.root / "done").exists()
        assert await mine.size(task) == 2**20

    async def run() -> None:
        async with workspace(tmp_path) as mine:
            await ran(mine, "true")  # the zygote keeps the old limit
            resource.setrlimit(resource.RLIMIT_FSIZE, (2**20, hard))
            try:
                await body(mine)
            finally:
                resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))

    asyncio.run(run())


def test_closing_leaves_no_process_and_no_descriptor_in_time(tmp_path: Path) -> None:
    async def run() -> float:
        async with workspace(tmp_path) as mine:
            await asyncio.gather(*(ran(mine, "true") for _ in range(50)))
            for command in ("trap '' TERM; sleep 600; sleep 600", "(setsid sleep 600 &)", "exec sleep 600"):
                await mine.start(command, background=True)
            await mine.start("trap '' TERM; touch deaf; while :; do sleep 600; done")
            await until((mine.root / "deaf").exists)
            assert len(children_of(os.getpid())) > 5
            began = time.monotonic()
        return time.monotonic() - began

    asyncio.run(run())
    before = descriptors()
    took = asyncio.run(run())
    assert took < 0.5
    assert descriptors() == before
    assert children_of(os.getpid()) == set()


def test_fifty_commands_cost_no_descriptor(tmp_path: Path) -> None:
    async def body(mine: Workspace) -> None:
        await ran(mine, "true")
        before = descriptors()
        for _ in range(50):
            task = await mine.start("echo hi")
            await mine.wait(task, BOUND)
            await mine.forget(task)
        assert descriptors() == before
        assert len(children_of(os.getpid())) <= 3  # the zygote, the one who waits, one that is just ending

    on_workspace(body, tmp_path)


def test_a_zygote_that_died_is_replaced(tmp_path: Path) -> None:
    async def body(mine: Workspace) -> None:
        await ran(mine, "true")
        task = await mine.start("sleep 600", background=True)
        (zygote,) = (pid for pid, up, _, _ in processes() if up == os.getpid())
        os.kill(zygote, signal.SIGKILL)
        assert await ran(mine, "echo well") == b"well\n"
        assert (await mine.run(task)).status == "running"
        assert (await mine.kill(task)).status == "killed"

    on_workspace(body, tmp_path)


def test_a_stopped_zygote_is_replaced_and_what_it_was_asked_happens_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("toolgate.tools.process.START_WITHIN", 0.3)
    monkeypatch.setattr("toolgate.tools.processes.END_WITHIN", 0.1)

    async def body(mine: Workspace) -> None:
        await ran(mine, "true")
        (zygote,) = (pid for pid, up, _, _ in processes() if up == os.getpid())
        await until(lambda: len(children_of(zygote)) == 1)
        (waiting,) = children_of(zygote)
        for pid in (zygote, waiting):
            os.kill(pid, signal.SIGSTOP)
        await ran(mine, "echo x >> log")
        await until(lambda: not {zygote, waiting} & {pid for pid, *_ in processes()})
        assert (mine.root / "log").read_text() == "x\n"

    on_workspace(body, tmp_path)


def test_many_commands_start_at_once(tmp_path: Path) -> None:
    async def body(mine: Workspace) -> None:
        outputs = await asyncio.gather(*(ran(mine, f"echo {number}") for number in range(60)))
        assert outputs == [f"{number}\n".encode() for number in range(60)]

    on_workspace(body, tmp_path)


def test_processes_that_never_stop_forking_are_killed(tmp_path: Path) -> None:
    async def body(mine: Workspace) -> None:
        mark = f"603.{os.getpid()}"
        chase = "import os\nfor _ in range(2): os.fork()\nwhile True:\n if os.fork(): os._exit(0)\n os.setsid()"
        task = await mine.start(f"python3 -c '{chase}' {mark} & python3 -c '{chase}' {mark}", background=True)
        await until(lambda: len(living(mark)) >= 4)
        assert (await mine.kill(task, 0.0)).status == "killed"
        assert living(mark) == set()

    on_workspace(body, tmp_path)


def test_stopped_processes_are_killed_too(tmp_path: Path) -> None:
    async def body(mine: Workspace) -> None:
        task = await mine.start("touch up; kill -STOP $$", background=True)
        await until((mine.root / "up").exists)
        run = await mine.kill(task)
        assert (run.status, run.exit_code) == ("killed", 143)

    on_workspace(body, tmp_path)


def test_old_tasks_make_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spool, "KEPT", 3)
    monkeypatch.setattr(spool, "KEPT_BYTES", 1000)

    async def kept(mine: Workspace) -> list[int]:
        listed = [task.id for task in await mine.list()]
        assert sorted(int(path.name) for path in (tmp_path / "spool").iterdir() if path.is_dir()) == listed
        return listed

    async def run() -> None:
        async with workspace(tmp_path) as mine:
            for _ in range(5):
                await ran(mine, "echo hi", background=True)
            assert await kept(mine) == [3, 4, 5]
            await ran(mine, "head -c 995 /dev/zero", background=True)
            assert await kept(mine) == [5, 6]
            with pytest.raises(KeyError):
                await mine.run(1)
        monkeypatch.setattr(spool, "KEPT", 1)
        async with workspace(tmp_path) as later:
            assert await kept(later) == [6]
        monkeypatch.setattr(spool, "KEPT_FOR", -1)
        async with workspace(tmp_path) as latest:
            assert await kept(latest) == []

    asyncio.run(run())


def test_the_spool_is_private(tmp_path: Path) -> None:
    async def body(mine: Workspace) -> None:
        task = await mine.start("true", background=True)
        assert (tmp_path / "spool").stat().st_mode & 0o777 == 0o700
        assert mine.output_path(task).stat().st_mode & 0o777 == 0o600

    on_workspace(body, tmp_path)


def test_a_spool_that_can_not_be_is_a_clear_error(tmp_path: Path) -> None:
    (tmp_path / "spool").write_text("")

    async def body(mine: Workspace) -> None:
        for _ in range(2):
            with pytest.raises(ToolError, match="no place for the command's output: file exists"):
                await mine.start("true")

    on_workspace(body, tmp_path)


def test_a_file_is_read_through_the_door(tmp_path: Path) -> None:
    async def body(mine: Workspace) -> None:
        path = mine.root / "file"
        path.write_bytes(b"x" * 1000)
        (mine.root / "link").symlink_to("file")
        assert await mine.read_file(str(path), 1000, anywhere=False) == b"x" * 1000
        assert await mine.read_file(str(mine.root / "link"), 1000, anywhere=False) == b"x" * 1000
        (tmp_path / "out").write_text("out")
        assert await mine.read_file(str(tmp_path / "out"), 10, anywhere=True) == b"out"

    on_workspace(body, tmp_path)


@pytest.mark.parametrize(
    ("path", "says"),
    [
        ("file", "not an absolute path"),
        ("~/file", "not an absolute path"),
        ("/a\0b", "NUL"),
        ("{root}/none", "does not exist"),
        ("{root}", "is a directory"),
        ("{root}/fifo", "is a pipe"),
        ("{root}/socket", "is a socket"),
        ("{root}/big", "1,001 bytes, over the limit of 1,000"),
        ("{root}/big/x", "not a directory"),
        ("/proc/self/environ", "outside the workspace"),
        ("{root}/../out", "outside the workspace"),
        ("{root}/../none", "outside the workspace"),
        ("{root}/link", "outside the workspace"),
        ("{root}/dangling", "outside the workspace"),
        ("{root}/folder/out", "outside the workspace"),
        ("{root}/loop", "too many levels of symbolic links"),
    ],
)
def test_what_must_not_be_read_is_refused_with_a_reason(tmp_path: Path, path: str, says: str) -> None:
    async def body(mine: Workspace) -> None:
        root = mine.root
        (root / "big").write_bytes(b"x" * 1001)
        (tmp_path / "out").write_text("out")
        for name, target in (("link", "../out"), ("folder", ".."), ("loop", "loop"), ("dangling", "/none/such")):
            (root / name).symlink_to(target)
        os.mkfifo(root / "fifo")
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(os.path.relpath(root / "socket"))
            with pytest.raises(ToolError, match=says):
                await mine.read_file(path.format(root=root), 1000, anywhere=False)

    on_workspace(body, tmp_path)


@pytest.mark.parametrize(
    ("path", "says"),
    [
        ("/dev/zero", "is a device"),
        ("/proc/self/mem", "can't be read"),
    ],
)
def test_devices_and_endless_files_are_refused_anywhere(tmp_path: Path, path: str, says: str) -> None:
    async def body(mine: Workspace) -> None:
        with pytest.raises(ToolError, match=says):
            await mine.read_file(path, 1000, anywhere=True)

    on_workspace(body, tmp_path)


def test_a_file_is_written_below_the_root_whole(tmp_path: Path) -> None:
    async def body(mine: Workspace) -> None:
        root = mine.root
        assert await mine.write_file("plan.md", b"one", suffix=".md") == root / "plan.md"
        assert await mine.write_file(str(root / "plan.md"), b"two", suffix=".md") == root / "plan.md"
        assert await mine.write_file("a/b/plan.md", b"deep", suffix=".md") == root / "a/b/plan.md"
        assert (root / "plan.md").read_bytes() == b"two"
        assert (root / "a/b/plan.md").read_bytes() == b"deep"
        assert sorted(path.name for path in root.iterdir()) == ["a", "plan.md"]

    on_workspace(body, tmp_path)


@pytest.mark.parametrize(
    ("path", "says"),
    [
        ("plan.txt", "does not end in .md"),
        (".md", "does not end in .md"),
        ("", "names no file"),
        ("../plan.md", r"goes up with \.\."),
        ("a/../../plan.md", r"goes up with \.\."),
        ("/tmp/plan.md", "outside the workspace"),
        ("out/plan.md", "links are not followed"),
        ("inner/plan.md", "links are not followed"),
        ("file.md/plan.md", "links are not followed"),
        ("link.md", "no regular file"),
        ("folder.md", "no regular file"),
        ("a\0.md", "can't be written"),
        ("x" * 300 + ".md", "can't be written"),
    ],
)
def test_what_must_not_be_written_is_refused_with_a_reason(tmp_path: Path, path: str, says: str) -> None:
    async def body(mine: Workspace) -> None:
        root = mine.root
        (tmp_path / "out").mkdir()
        (root / "folder.md").mkdir()
        (root / "file.md").write_text("")
        for name, target in (("out", tmp_path / "out"), ("inner", "folder.md"), ("link.md", "file.md")):
            (root / name).symlink_to(target)
        before = sorted(root.iterdir())
        with pytest.raises(ToolError, match=says):
            await mine.write_file(path, b"data", suffix=".md")
        assert sorted(root.iterdir()) == before
        assert [*(tmp_path / "out").iterdir()] == []
        assert (root / "file.md").read_text() == ""

    on_workspace(body, tmp_path)


def test_nothing_starts_after_the_close(tmp_path: Path) -> None:
    async def run() -> None:
        async with workspace(tmp_path) as mine:
            await mine.close(0.1)
            with pytest.raises(ToolError, match="shutting down"):
                await mine.start("true")

    asyncio.run(run())


def test_how_a_command_ended_is_known_as_soon_as_it_is_waited_for(tmp_path: Path) -> None:
    async def body(mine: Workspace) -> None:
        for _ in range(20):
            starting = asyncio.ensure_future(mine.start("exit 3"))
            while not starting.done():
                await asyncio.sleep(0)
                time.sleep(0.01)  # a busy loop: all that the supervisor says arrives at once
            task = await starting
            assert await mine.wait_shell(task, BOUND)
            assert (await mine.run(task)).exit_code == 3
            assert await mine.wait(task, BOUND)
            assert (await mine.run(task)).status == "exited"

    on_workspace(body, tmp_path)

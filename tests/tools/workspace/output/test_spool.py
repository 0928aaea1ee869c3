"""Runs on disk: ids, output and endings, and how they are forgotten."""

import asyncio
import contextlib
import os
import resource
import shutil
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from tests.tools.shell_commands import (
    BOUND,
    ENVIRONMENT,
    Caller,
    hosted,
    living,
    on_caller,
    on_workspace,
    ran,
    text_of,
    told,
    until,
    wait_for,
    workspace,
)
from toolgate.tools.api.errors import ToolError
from toolgate.tools.workspace.commands.environment import UnsandboxedEnvironment
from toolgate.tools.workspace.limits import UNLIMITED
from toolgate.tools.workspace.local_workspace import LocalWorkspace
from toolgate.tools.workspace.output import run_output, spool
from toolgate.tools.workspace.processes.zygote import CommandRunner


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
from tests.tools.shell_commands import ran, until, workspace
async def main():
    async with workspace(pathlib.Path({str(tmp_path)!r})) as mine:
        await ran(mine, "echo done; exit 3", background=True)
        await mine.start("echo begun; sleep 600.{os.getpid()}", background=True)
        assert await mine.wait_output(2, 0, 30.0) == len("begun\\n")  # what is still in the pipe ends with the server
        print("up", flush=True)
        await asyncio.sleep(60)
asyncio.run(main())
"""
    host = hosted(script)
    try:
        line = host.stdout.readline()  # type: ignore[union-attr]  # it is a pipe
        assert line == "up\n"
    finally:
        host.kill()
        host.communicate()
    wait_for(lambda: not living(f"600.{os.getpid()}"))

    async def body(mine: LocalWorkspace) -> None:
        first, second = await mine.list()
        assert (first.id, first.status, first.exit_code, first.command) == (1, "exited", 3, "echo done; exit 3")
        assert (second.id, second.status, second.exit_code) == (2, "lost", None)
        done, begun = await mine.take(1, 100), await mine.take(2, 100)
        assert (done.text, done.has_more, begun.text, begun.has_more) == ("done\n", False, "begun\n", False)
        assert (await mine.kill(2)).status == "lost"
        assert await mine.start("true") == 3

    on_workspace(body, tmp_path)
    assert list((tmp_path / "spool").glob("*.lock")) == []


def test_two_hundred_megabytes_of_output_cost_no_memory_and_are_capped_with_a_note(tmp_path: Path) -> None:
    async def body(mine: LocalWorkspace) -> None:
        await ran(mine, "true")
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        task = await mine.start("head -c 200000000 /dev/zero; echo done >&2", background=True)
        assert await mine.wait(task, 30)
        assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 8 * 1024
        assert (await mine.run(task)).exit_code == 0
        gap = run_output.format_gap(200_000_005 - run_output.MAX_OUTPUT - run_output.MAX_END)
        place = run_output.MAX_OUTPUT
        assert await mine.size(task) == place + len(run_output.CAPPED + gap) + run_output.MAX_END
        assert (await mine.read(task, place, 200)).startswith(run_output.CAPPED + gap)
        assert (await mine.read(task, await mine.size(task) - 7, 100)) == b"\0\0done\n"

    on_workspace(body, tmp_path)


def test_a_full_disk_does_not_stop_a_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)

    async def body(mine: LocalWorkspace) -> None:
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


def test_old_tasks_make_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spool, "KEPT", 3)
    monkeypatch.setattr(spool, "KEPT_BYTES", 1000)

    async def kept(mine: LocalWorkspace) -> list[int]:
        listed = [task.id for task in await mine.list()]

        def left() -> list[int]:
            return sorted(int(path.name) for path in (tmp_path / "spool").iterdir() if path.name.isdecimal())

        await until(lambda: left() == listed)  # forgotten runs are removed in a thread
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
    async def body(mine: LocalWorkspace) -> None:
        task = await mine.start("true", background=True)
        assert (tmp_path / "spool").stat().st_mode & 0o777 == 0o700
        assert (mine.output_folder / str(task) / "output").stat().st_mode & 0o777 == 0o600

    on_workspace(body, tmp_path)


def test_a_spool_that_can_not_be_is_a_clear_error(tmp_path: Path) -> None:
    (tmp_path / "spool").write_text("")

    async def body(mine: LocalWorkspace) -> None:
        for _ in range(2):
            with pytest.raises(ToolError, match="cannot store the output of the command: file exists"):
                await mine.start("true")

    on_workspace(body, tmp_path)


def test_capped_output_is_not_said_to_be_all_of_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_output, "MAX_OUTPUT", 100_000)

    async def body(me: Caller) -> None:
        output = await me.bash("yes | head -c 200000; echo the cause >&2")
        file = output.structured["output_file"]
        place = f"its first 100,000 bytes and its end are in {file}]"
        assert told(output).partition("\n")[0].endswith(f"; {place}")
        assert told(output).endswith(f"y\nthe cause\n[{place}")
        gap = run_output.format_gap(200_010 - 100_000 - run_output.MAX_END)
        kept = Path(file).read_bytes()
        assert kept[100_000:].startswith(run_output.CAPPED + gap)
        assert len(kept) == 100_000 + len(run_output.CAPPED + gap) + run_output.MAX_END

    on_caller(body, tmp_path)


def test_a_reader_of_a_running_command_gets_the_end_so_far(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_output, "MAX_OUTPUT", 20_000)

    async def body(me: Caller) -> None:
        os.mkfifo(me.workspace.root / "go")
        command = "yes | head -c 19999; echo; echo early; read -r _ < go; yes no | head -c 99999; echo; echo late"
        task = (await me.call("BackgroundBash", command=command)).structured["task_id"]
        await until(lambda: any(run.kept is not None for run in me.workspace.running()))
        text = ""
        while "early" not in text:
            text += (await me.call("ReadBgOutput", task_id=task)).structured["output"]
        assert text.endswith("\n[output from here on is not kept: 64 MiB is the most]\nearly\n")
        (me.workspace.root / "go").write_text("\n")
        assert await me.workspace.wait(task, BOUND)
        read = [(await me.call("ReadBgOutput", task_id=task)).structured["output"] for _ in range(4)]
        gap = run_output.format_gap(100_005 - run_output.MAX_END).decode()
        assert read[0].startswith(gap) and "".join(read).endswith("no\n\nlate\n") and not read[3]

    on_caller(body, tmp_path)


@contextlib.contextmanager
def no_room() -> Iterator[None]:
    """Let no file grow, as on a full disk."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_commands_run_though_nothing_can_be_written(tmp_path: Path) -> None:
    full = "the disk is full: little output is kept, and `cd` does not persist"

    async def body(me: Caller) -> None:
        await me.bash("true")  # the zygote keeps the old limit
        with no_room():
            output = await me.bash("echo hi; cd /; exit 3")
            assert (text_of(output), output.structured["cwd"]) == ("hi\nexit code: 3", "/")
            output = await me.bash("echo hi; trap 'cd /tmp' EXIT; exit 3")  # as if its directory was not recorded
            assert text_of(output) == f"hi\nexit code: 3\n{full}"
            assert output.structured["output_file"] is None
            output = await me.bash("seq 1000000")
            assert output.structured["truncated"] and output.structured["output_file"] is None
            assert len(told(output)) <= 30_000 and "not in a file" in told(output)
            output = await me.call("BackgroundBash", command="seq 3; rm -f large")
            assert full in text_of(output)
            task = output.structured["task_id"]
            assert await me.workspace.wait(task, BOUND)
            assert (await me.call("ReadBgOutput", task_id=task)).structured["output"] == "1\n2\n3\n"
        assert (await me.call("ListBgTasks")).structured["tasks"][0]["exit_code"] == 0
        later = await me.call("BackgroundBash", command="cd /; pwd")
        assert later.structured["task_id"] > task
        assert text_of(await me.bash("cd /; pwd")) == "/\n"
        assert str(me.place.cwd) == "/"

    on_caller(body, tmp_path)
    assert stored(tmp_path) == ["6"]


def stored(folder: Path) -> list[str]:
    return sorted(path.name for path in (folder / "spool").iterdir() if path.name.isdecimal())


def test_a_command_that_ends_soon_and_prints_little_takes_no_room(tmp_path: Path) -> None:
    async def body(me: Caller) -> None:
        names = told(await me.bash(f"printf '%01000d' 0; echo; ls {tmp_path}/spool")).split()
        assert "places" in names and not any(name.isdecimal() for name in names[1:])
        assert stored(tmp_path) == []
        await until(lambda: not os.listdir(tmp_path / "spool" / "places"))

    on_caller(body, tmp_path)


def test_output_is_stored_as_soon_as_it_is_large(tmp_path: Path) -> None:
    lines = "".join(f"{number}\n" for number in range(1, 5_001))
    assert run_output.MAX_SMALL < len(lines) < 30_000

    async def body(me: Caller) -> None:
        file = tmp_path / "spool" / "1" / "output"
        printing = f"for n in $(seq 5000); do echo $n; done; until [ -s {file} ]; do sleep 0.01; done"
        assert told(await me.bash(f"{printing}; cp {file} copy; echo end")) == f"{lines}end\n"
        copy = (me.workspace.root / "copy").read_text()
        assert len(copy) > run_output.MAX_SMALL // 2 and lines.startswith(copy)
        await until(lambda: stored(tmp_path) == [])

    on_caller(body, tmp_path)


def test_a_command_that_goes_on_is_stored(tmp_path: Path) -> None:
    async def body(mine: LocalWorkspace) -> None:
        command = "echo one; until [ -e go ]; do sleep 0.01; done; echo two"
        task, conclusion = await mine.execute(command, wait=0.3, limit=1_000)
        assert conclusion is None and stored(tmp_path) == [str(task)]
        file = tmp_path / "spool" / str(task) / "output"
        assert file.read_bytes() == b"one\n"
        (mine.root / "go").touch()
        assert await mine.wait_shell(task, BOUND)
        assert (await mine.conclude(task, limit=1_000)).excerpt.text == "one\ntwo\n"

    on_workspace(body, tmp_path)


def test_records_that_a_killed_server_left_are_removed(tmp_path: Path) -> None:
    places = tmp_path / "spool" / "places"
    places.mkdir(parents=True)
    (places / "123-abcd-7").write_text("/tmp\n")

    async def run() -> None:
        async with workspace(tmp_path) as one:
            await one.list()
            assert not os.listdir(places)
            (lock,) = (tmp_path / "spool").glob("*.lock")
            (places / f"{lock.stem}-8").touch()  # as of a command that runs
            (places / "123-abcd-9").touch()
            async with workspace(tmp_path) as two:
                await two.list()
            assert os.listdir(places) == [f"{lock.stem}-8"]

    asyncio.run(run())


@pytest.mark.parametrize("removed", ["places", "last-id"])
def test_what_is_left_of_a_spool_stays_when_a_part_of_it_was_removed(tmp_path: Path, removed: str) -> None:
    folder = tmp_path / "spool"

    async def body(me: Caller) -> None:
        living = await me.call("BackgroundBash", command="echo one; until [ -e go ]; do sleep 0.01; done; echo two")
        task = living.structured["task_id"]
        for number in range(spool.KEPT):
            await ran(me.workspace, f"echo {number}", background=True)
        kept = stored(tmp_path)
        assert len(kept) == spool.KEPT + 1
        shutil.rmtree(folder / removed) if removed == "places" else (folder / removed).unlink()
        assert text_of(await me.bash("echo well; cd /")) == "well\n"
        assert (str(me.place.cwd), stored(tmp_path)) == ("/", kept)
        (me.workspace.root / "go").touch()
        assert await me.workspace.wait(task, BOUND)
        assert (await me.call("ReadBgOutput", task_id=task)).structured["output"] == "one\ntwo\n"

    on_caller(body, tmp_path)


def test_two_servers_that_gave_the_same_id_keep_both_outputs(tmp_path: Path) -> None:
    async def run() -> None:
        async with workspace(tmp_path) as two:
            async with workspace(tmp_path) as one:
                await one.list()
                command = "until [ -e go ]; do sleep 0.01; done; echo out"
                going = asyncio.ensure_future(one.execute(command, wait=0.5, limit=99))
                await until(lambda: bool(one.running()))
                (tmp_path / "spool" / "last-id").unlink()
                other = await two.start("echo other", background=True)
                task, conclusion = await going
                assert (task, conclusion) == (other, None)
                (one.root / "go").touch()
                assert await one.wait_shell(task, BOUND)
                assert (await one.conclude(task, limit=99)).excerpt.text == "out\n"
                await one.forget(task)
            assert await two.wait(other, BOUND)
            assert (await two.take(other, 99)).text == "other\n"

    asyncio.run(run())


def test_on_a_disk_that_became_read_only_a_command_is_neither_killed_nor_lost(tmp_path: Path) -> None:
    folder = tmp_path / "spool"
    folder.mkdir()
    if subprocess.run(["mount", "--bind", folder, folder], capture_output=True).returncode:
        pytest.skip("no file system can be mounted here")
    subprocess.run(["umount", folder], check=True)

    async def body(me: Caller) -> None:
        await me.bash("true")
        subprocess.run(["mount", "--bind", folder, folder], check=True)
        subprocess.run(["mount", "-o", "remount,bind,ro", folder], check=True)
        assert told(await me.bash("echo hi; touch proof")) == "hi\n"
        assert told(await me.bash("seq 5000")).endswith("\n5000\n")
        task, conclusion = await me.workspace.execute("sleep 0.5; echo end", wait=0.1, limit=99)
        assert conclusion is None and await me.workspace.wait_shell(task, BOUND)
        assert (await me.workspace.conclude(task, limit=99)).excerpt.text == "end\n"
        assert "read-only file system" in text_of(await me.call("BackgroundBash", command="true"))

    try:
        on_caller(body, tmp_path)
    finally:
        subprocess.run(["umount", "-l", folder], check=True)


def test_a_link_in_place_of_the_records_is_replaced(tmp_path: Path) -> None:
    (tmp_path / "spool").mkdir()
    (tmp_path / "precious").mkdir()
    (tmp_path / "precious" / "1").touch()
    (tmp_path / "spool" / "places").symlink_to(tmp_path / "precious")

    async def body(me: Caller) -> None:
        await me.bash("cd /")
        assert str(me.place.cwd) == "/"

    on_caller(body, tmp_path)
    assert os.listdir(tmp_path / "precious") == ["1"]


def test_output_is_kept_in_memory_if_the_disk_is_full_at_its_first_byte(tmp_path: Path) -> None:
    async def body(me: Caller) -> None:
        os.mkfifo(me.workspace.root / "go")
        task = (await me.call("BackgroundBash", command="read < go; echo hi")).structured["task_id"]
        with no_room():
            await asyncio.to_thread((me.workspace.root / "go").write_bytes, b"\n")
            assert await me.workspace.wait(task, BOUND)
        assert (await me.call("ReadBgOutput", task_id=task)).structured["output"] == "hi\n"
        assert not (await me.call("ReadBgOutput", task_id=task)).is_error

    on_caller(body, tmp_path)


def test_on_a_full_disk_old_output_makes_room(tmp_path: Path) -> None:
    folder = tmp_path / "spool"
    folder.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", folder], capture_output=True)
    if mounted.returncode:
        pytest.skip("no file system can be mounted here")

    async def body(me: Caller) -> None:
        old = (await me.call("BackgroundBash", command="head -c 1000000 /dev/zero")).structured["task_id"]
        assert await me.workspace.wait(old, BOUND)
        read = (await me.call("ReadBgOutput", task_id=old)).structured
        assert read["truncated"]
        output = await me.bash("cd /; echo well")
        assert (text_of(output), output.structured["cwd"]) == ("well\n", "/")
        assert (await me.call("ReadBgOutput", task_id=old)).is_error
        (folder / "filler").write_bytes(b"")
        with contextlib.suppress(OSError), (folder / "filler").open("wb", buffering=0) as file:
            while file.write(b"x" * 4096):
                pass
        assert told(await me.bash(f"rm {folder}/filler; echo freed")) == "freed\n"
        assert text_of(await me.bash("echo well")) == "well\n"

    try:
        on_caller(body, tmp_path)
    finally:
        subprocess.run(["umount", "-l", folder], check=True)


def test_a_removed_spool_is_made_again(tmp_path: Path) -> None:
    async def body(me: Caller) -> None:
        first = (await me.call("BackgroundBash", command="echo one; exec sleep 600")).structured["task_id"]
        for name in ("spool", "spool/places"):
            await me.bash(f"rm -rf {tmp_path}/{name}")
            assert text_of(await me.bash("echo well; cd /")) == "well\n"
            assert str(me.place.cwd) == "/"
            me.place.cwd = None
        second = (await me.call("BackgroundBash", command="true")).structured["task_id"]
        assert second > first + 4
        assert (await me.call("ReadBgOutput", task_id=first)).structured["output"] == "one\n"
        assert (await me.call("KillBgTask", task_id=first)).structured["status"] == "killed"

    on_caller(body, tmp_path)


def test_wrong_file_types_in_a_spool_block_no_command(tmp_path: Path) -> None:
    folder = tmp_path / "spool"
    (folder / "2").mkdir(parents=True)
    for pipe in (folder / "last-id", folder / "ended.lock", folder / "2" / "output"):
        os.mkfifo(pipe)
    ended = spool.Run(2, "true", "ended", time.time(), background=True, status="exited", exit_code=0)
    (folder / "2" / "task.json").write_bytes(msgspec.json.encode(ended))
    os.mkfifo(folder / "2" / "task.new")
    for number, odd in enumerate((os.mkfifo, Path.mkdir, lambda path: path.symlink_to("/dev/zero")), 4):
        (folder / str(number)).mkdir()
        odd(folder / str(number) / "task.json")
    (folder / "3").write_bytes(b"no folder")

    async def body(mine: LocalWorkspace) -> None:
        async with asyncio.timeout(BOUND):
            assert [task.id for task in await mine.list()] == [2]
            assert ((await mine.take(2, 1_000)).text, await mine.size(2)) == ("", 0)
            assert await mine.start("true") == 4

    on_workspace(body, tmp_path)


def test_a_folder_in_place_of_last_id_is_replaced(tmp_path: Path) -> None:
    (tmp_path / "spool" / "last-id" / "deep").mkdir(parents=True)

    async def body(mine: LocalWorkspace) -> None:
        assert await mine.start("true") == 1

    on_workspace(body, tmp_path)


def test_a_workspace_closes_though_its_spool_can_not_be_opened(tmp_path: Path) -> None:
    reached, release = threading.Event(), threading.Event()

    class Hanging(UnsandboxedEnvironment):
        def prepare(self) -> None:
            reached.set()
            release.wait(BOUND)

    async def run() -> None:
        quarters = Hanging(CommandRunner(), UNLIMITED)
        mine = LocalWorkspace(tmp_path, tmp_path / "spool", ENVIRONMENT, lambda _: None, command_environment=quarters)
        asked = asyncio.create_task(mine.start("true"))
        await asyncio.to_thread(reached.wait, BOUND)
        async with asyncio.timeout(BOUND / 2):
            await mine.close(grace=0.1)
        asked.cancel()

    try:
        asyncio.run(run())
        assert not release.is_set()
    finally:
        release.set()

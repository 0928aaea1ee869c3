"""Programs of `open_program` in sandboxes: beside a person's commands, and apart from them."""

import asyncio
import os
import signal
from pathlib import Path

import pytest
from msgspec.structs import replace

from tests.tools.shell_commands import children_of, hosted, living, processes, ran, until, wait_for
from tests.tools.workspace.commands.test_program_streams import program, read_all, read_line
from tests.tools.workspace.sandbox.test_sandbox import BOUND, folder, sandbox, workspace
from toolgate.tools import ToolError
from toolgate.tools.workspace.limits import Limits
from toolgate.tools.workspace.processes import landlock
from toolgate.tools.workspace.sandbox import process as cell

__all__ = ["folder"]  # the fixture
pytestmark = [
    pytest.mark.skipif(os.geteuid() != 0, reason="only root can be several users"),
    pytest.mark.programs("bwrap"),
]
at_each_level = pytest.mark.parametrize("level", ["bwrap", "uid"])
SECRET = f"secret-of-{os.getpid()}"
HIDDEN = f"{SECRET[:-1]}[{SECRET[-1]}]"  # a pattern that does not match itself
PEEK = f"""
for each in /proc/[0-9]*; do
    for file in environ mem maps; do
        cat $each/$file | tr '\\0' '\\n'
    done
    ls -l $each/fd $each/exe
done 2>/dev/null | grep {HIDDEN}
echo end
"""


def environments_with(secret: str) -> set[int]:
    """Return the processes with the secret in their environment."""
    found: set[int] = set()
    for path in Path("/proc").glob("[0-9]*"):
        try:
            if secret.encode() in (path / "environ").read_bytes():
                found.add(int(path.name))
        except OSError:
            continue
    return found


@at_each_level
def test_commands_can_not_read_the_environment_of_a_program(folder: Path, level: str) -> None:
    async def body() -> None:
        async with workspace(folder, sandbox(level)) as mine:
            assert mine.isolates_environment
            async with program(mine, "sleep 600 & echo up; cat; :", {"KEY": SECRET}) as stream:
                assert await read_line(stream) == "up\n"
                await until(lambda: len(environments_with(SECRET)) == 3)  # bash, sleep, cat
                assert await ran(mine, PEEK) == b"end\n"

    asyncio.run(body())


@at_each_level
def test_a_program_can_not_read_the_environment_of_another_program(folder: Path, level: str) -> None:
    version = landlock.find_version()
    if level == "uid" and version < landlock.REFERS:
        pytest.skip("this kernel has no Landlock that moves files")

    async def body() -> None:
        async with (
            workspace(folder, sandbox(level)) as mine,
            program(mine, "sleep 600 & echo up; cat; :", {"KEY": SECRET}) as first,
        ):
            assert await read_line(first) == "up\n"
            await until(lambda: len(environments_with(SECRET)) == 3)  # bash, sleep, cat
            async with program(mine, PEEK) as second:
                assert await read_all(second) == b"end\n"
            assert len(environments_with(SECRET)) == 3  # they were there to be read

    asyncio.run(body())


@at_each_level
def test_a_program_can_not_read_the_environment_of_commands_nor_end_them(folder: Path, level: str) -> None:
    version = landlock.find_version()
    if level == "uid" and version < landlock.REFERS:
        pytest.skip("this kernel has no Landlock that moves files")
    has_scopes = level == "bwrap" or version >= landlock.HAS_SCOPES

    async def body() -> None:
        async with workspace(folder, sandbox(level)) as mine:
            command = await mine.start(f"export KEY={SECRET}; sleep 600", background=True)
            await until(lambda: len(environments_with(SECRET)) == 1)
            async with program(mine, PEEK) as stream:
                assert await read_all(stream) == b"end\n"
            if has_scopes:
                async with program(mine, "kill -9 -1") as stream:
                    await stream.wait()
            assert (await mine.run(command)).status == "running"
            assert len(environments_with(SECRET)) == 1
            async with program(mine, "mkdir a b; echo 1 >a/c; mv a/c b/d; ln b/d a/e; cat a/e; kill -9 $$") as stream:
                assert await read_all(stream) == b"1\n", await stream.stderr_tail()

    asyncio.run(body())


@at_each_level
def test_a_program_sees_the_workspace_and_what_is_shown_read_only(folder: Path, level: str) -> None:
    shown, other = folder / "state" / "mounts" / "one", folder / "state" / "mounts" / "two"
    for each in (shown, other):
        each.mkdir(parents=True)
        (each / "tool").write_text("#!/bin/sh\necho tool\n")
        (each / "tool").chmod(0o755)
        each.chmod(0o755)
    if level == "uid":
        other.chmod(0o700)
    script = f"""
{shown}/tool; cat {other}/tool && echo seen; echo x 2>/dev/null >{shown}/new && echo written; id -u
echo made >made; cat <file; echo err >/dev/stderr; echo out >/dev/stdout
echo $HOME $TMPDIR; cd $TMPDIR && echo t >$TMPDIR/temporary-$$ && rm temporary-$$ && echo temporary; read
"""

    async def body() -> None:
        hidden = [folder / "state"] if level == "bwrap" else []
        async with workspace(folder, sandbox(level, hidden_paths=hidden)) as mine:
            uid = (await ran(mine, "echo file >file; id -u")).decode()
            async with program(mine, script, shows=[shown]) as stream:
                await stream.close_input()
                said = (await read_all(stream)).decode()
                assert said == f"tool\n{uid}file\nout\n{mine.root} /tmp\ntemporary\n", await stream.stderr_tail()
                assert (await stream.stderr_tail()).endswith("err\n")
            assert await ran(mine, "cat made; echo more >>made && tail -1 made; ls") == b"made\nmore\nfile\nmade\n"
            if level == "bwrap":
                with pytest.raises(ToolError, match="not-there"):
                    await mine.open_program(["true"], env={}, shows=[folder / "not-there"])

    asyncio.run(body())


@at_each_level
def test_programs_and_commands_end_without_each_other(folder: Path, level: str) -> None:
    async def body() -> None:
        async with workspace(folder, sandbox(level)) as mine, program(mine, "cat") as first:
            task = await mine.start("echo up; sleep 600", background=True)
            await mine.wait_output(task, 0, BOUND)
            async with program(mine, "cat") as second:
                await second.write(b"hi")
                assert await second.read() == b"hi"
            assert (await mine.run(task)).status == "running"
            await mine.kill(task, 0)
            mine._environment.runner.retire()  # as after an idle while
            await mine._environment.runner.wait_ended()
            await first.write(b"there")
            assert await first.read() == b"there"
            assert await ran(mine, "echo well") == b"well\n"
            await first.write(b"still")
            assert await first.read() == b"still"
            mine._environment.runner.retire()
            async with program(mine, "cat") as third:  # while the other sandbox ends
                await third.write(b"new")
                assert await third.read() == b"new"

    asyncio.run(body())


@at_each_level
def test_closing_ends_a_stubborn_tree_in_a_sandbox(folder: Path, level: str) -> None:
    mark = f"607.{os.getpid()}"
    script = f"trap '' TERM; (setsid setsid sleep {mark} &); setsid sleep {mark} & echo up; sleep {mark}; sleep {mark}"

    async def body() -> None:
        async with workspace(folder, sandbox(level)) as mine:
            stream = await mine.open_program(["bash", "-c", script], env={})
            assert await read_line(stream) == "up\n"
            await until(lambda: len(living(mark)) == 3)
            await stream.close(0.2)
            await until(lambda: not living(mark))

    asyncio.run(body())


@at_each_level
def test_a_program_that_kills_all_around_it_leaves_nothing(folder: Path, level: str) -> None:
    """It may signal its supervisor and, without namespaces, the zygote that would adopt its orphans. At `uid` Landlock
    keeps it from that where it scopes signals."""
    is_kept = level == "uid" and landlock.find_version() >= landlock.HAS_SCOPES
    mark = f"608.{os.getpid()}"
    script = (
        f"(trap '' TERM; setsid setsid sleep {mark} &); echo up; read; kill -9 $(cut -d' ' -f4 /proc/$PPID/stat) $PPID"
    )

    async def body() -> None:
        async with workspace(folder, sandbox(level)) as mine:
            async with program(mine, script) as stream, asyncio.timeout(BOUND):
                assert await read_line(stream) == "up\n"
                await stream.write(b"\n")
                end = await stream.wait()
                assert end.exit_code == (1 if is_kept else None)
                assert is_kept or (end.reason is not None and "its sandbox ended" in end.reason)
                await until(lambda: not living(mark))
            assert await ran(mine, "echo well") == b"well\n"

    asyncio.run(body())


@at_each_level
def test_killing_the_server_kills_programs_in_sandboxes(folder: Path, level: str) -> None:
    mark = f"609.{os.getpid()}"
    command = f"trap '' TERM; (setsid setsid sleep {mark} &) ; sleep {mark} & echo up; sleep {mark}"
    script = f"""
import asyncio, pathlib
from tests.tools.workspace.sandbox.test_sandbox import sandbox, users, workspace
users.CLAIMS = pathlib.Path({str(folder / "claims")!r})
async def main():
    async with workspace(pathlib.Path({str(folder)!r}), sandbox({level!r})) as mine:
        streams = [await mine.open_program(["bash", "-c", {command!r}], env={{}}) for _ in range(2)]
        print("up", flush=True)
        await asyncio.sleep(60)
asyncio.run(main())
"""
    host = hosted(script)
    try:
        assert host.stdout is not None and host.stdout.readline() == "up\n"
        wait_for(lambda: len(living(mark)) == 6)
        below = children_of(host.pid)
    finally:
        host.send_signal(signal.SIGKILL)
        host.communicate()
    wait_for(lambda: not living(mark))
    wait_for(lambda: not below & {pid for pid, *_ in processes()})


def test_without_the_capability_a_program_runs_and_is_not_said_to_be_apart(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("toolgate.tools.workspace.sandbox.process.can_mark", lambda: False)

    async def body() -> None:
        async with workspace(folder, sandbox("uid")) as mine:
            assert not mine.isolates_environment
            async with program(mine, "grep CapPrm /proc/self/status") as stream:
                assert await read_line(stream) == "CapPrm:\t0000000000000000\n"
        async with workspace(folder, sandbox("bwrap")) as mine:
            assert mine.isolates_environment

    asyncio.run(body())


def test_at_uid_a_program_has_one_capability_that_gives_nothing(folder: Path) -> None:
    async def body() -> None:
        async with workspace(folder, sandbox("uid")) as mine:
            async with program(mine, "grep '^Cap' /proc/self/status") as stream:
                sets = dict(line.split(":\t") for line in (await read_all(stream)).decode().splitlines())
                kept = f"{1 << cell.MARK:016x}"
                assert sets == {"CapInh": kept, "CapPrm": kept, "CapEff": kept, "CapBnd": "0" * 16, "CapAmb": kept}
            assert (await ran(mine, "grep CapPrm /proc/self/status")).split() == [b"CapPrm:", b"0" * 16]

    asyncio.run(body())


@at_each_level
def test_the_limits_of_a_program_are_those_of_commands(folder: Path, level: str) -> None:
    async def body() -> None:
        kept = sandbox(level, limits=replace(Limits(), files=64, memory=2**28))
        hungry = "ulimit -n; exec perl -e '$x = \"x\" x 1e9'"
        async with workspace(folder, kept) as mine, program(mine, hungry) as stream, asyncio.timeout(BOUND):
            assert await read_line(stream) == "64\n"
            end = await stream.wait()
            assert end.exit_code and "(--limit memory)" in end.hits[0], await stream.stderr_tail()

    asyncio.run(body())


@at_each_level
def test_a_program_that_its_sandbox_does_not_show_is_named_with_the_option(
    folder: Path, level: str, tmp_path: Path
) -> None:
    hidden = tmp_path / "hidden"
    hidden.write_text("#!/bin/sh\n")
    hidden.chmod(0o700)

    async def body() -> None:
        async with workspace(folder, sandbox(level)) as mine:
            with pytest.raises(ToolError, match=r"there is no program \S+hidden, .*: name its folder with --sandbox-p"):
                await mine.open_program([str(hidden)], env={})
            with pytest.raises(ToolError, match=r"there is no program /missing, or it can't be run here$"):
                await mine.open_program(["/missing"], env={})

    asyncio.run(body())

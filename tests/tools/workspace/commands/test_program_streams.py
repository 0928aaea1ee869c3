"""`open_program`: a program whose standard input, output and error a caller holds."""

import asyncio
import contextlib
import os
import signal
from collections.abc import AsyncGenerator, Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.tools.shell_commands import (
    BOUND,
    alive,
    children_of,
    descriptors,
    hosted,
    living,
    on_workspace,
    processes,
    ran,
    until,
    wait_for,
)
from tests.tools.workspace.commands import test_programs
from tests.tools.workspace.processes.test_processes import TREE, grown_tree
from toolgate.tools import ToolError
from toolgate.tools.workspace.limits import Limits
from toolgate.tools.workspace.local_workspace import LocalWorkspace
from toolgate.tools.workspace.workspace import ProgramEnd, ProgramInputError, ProgramStream

PIPE = 2**16  # bytes that a pipe holds
SIZE = 10 * 2**20


@contextlib.asynccontextmanager
async def program(
    mine: LocalWorkspace, script: str, env: Mapping[str, str] = {}, **how: Any
) -> AsyncGenerator[ProgramStream]:
    """Yield a program of bash that ends with the block."""
    stream = await mine.open_program(["bash", "-c", script], env=env, **how)
    try:
        yield stream
    finally:
        await stream.close(0.0)


async def read_all(stream: ProgramStream) -> bytes:
    pieces: list[bytes] = []
    while piece := await stream.read():
        pieces.append(piece)
    return b"".join(pieces)


async def read_line(stream: ProgramStream) -> str:
    """Return all that came up to the end of a line."""
    data = b""
    while not data.endswith(b"\n"):
        piece = await stream.read()
        assert piece, data
        data += piece
    return data.decode()


def test_ten_megabytes_go_both_ways_and_the_input_ends(tmp_path: Path) -> None:
    async def body(mine: LocalWorkspace) -> None:
        data = os.urandom(SIZE)
        async with program(mine, "exec cat") as stream, asyncio.timeout(BOUND):

            async def write() -> None:
                await stream.write(data)
                await stream.close_input()

            writing = asyncio.ensure_future(write())
            assert await read_all(stream) == data
            await writing
            assert await stream.wait() == ProgramEnd(0)
            assert await stream.read() == b""
            with pytest.raises(ProgramInputError, match="takes no more input"):
                await stream.write(b"more")

    on_workspace(body, tmp_path)


def test_a_program_that_nobody_reads_waits(tmp_path: Path) -> None:
    piece, most = 4096, 3 * PIPE  # a node reads one piece ahead, another may be on its way
    flood = f"while printf '%{piece}s' x; do n=$((n + 1)); echo $n >count.new; mv count.new count; done"

    async def body(mine: LocalWorkspace) -> None:
        count = mine.root / "count"

        def written() -> int:
            return int(count.read_text()) * piece if count.exists() else 0

        async with program(mine, flood) as stream:
            await until(lambda: written() >= PIPE)
            for _ in range(5):
                assert await ran(mine, "echo here") == b"here\n"
            assert written() <= most
            taken = 0
            while taken < 2 * most:
                taken += len(await stream.read())
            await until(lambda: written() > most)

    on_workspace(body, tmp_path)


def test_a_write_waits_for_a_program_that_does_not_read(tmp_path: Path) -> None:
    async def body(mine: LocalWorkspace) -> None:
        async with program(mine, "echo up; read; exec head -c 1000000 >got") as stream:
            assert await read_line(stream) == "up\n"
            writing = asyncio.ensure_future(stream.write(b"x" * 1_000_000))
            assert await ran(mine, "echo here") == b"here\n"
            assert not writing.done()
            await stream.close(0.0)
            with pytest.raises(ProgramInputError):
                await writing
        async with program(mine, "read; exec head -c 1000000 >got") as stream:
            await stream.write(b"\n" + b"x" * 1_000_000)
            assert await stream.wait() == ProgramEnd(0)
            assert (mine.root / "got").stat().st_size == 1_000_000

    on_workspace(body, tmp_path)


def test_standard_error_is_apart_and_its_last_lines_stay(tmp_path: Path) -> None:
    script = r"""printf '\033[31mred\033[0m\n' >&2; echo out; read; seq 1000000 >&2; echo end >&2; exit 3"""

    async def body(mine: LocalWorkspace) -> None:
        async with program(mine, script) as stream, asyncio.timeout(BOUND):
            assert await read_line(stream) == "out\n"
            await until_async(lambda: stream.stderr_tail(), "red\n")
            await stream.write(b"go\n")
            assert await stream.read() == b""
            assert await stream.wait() == ProgramEnd(3)
            lines = (await stream.stderr_tail()).splitlines()
            assert lines == [*map(str, range(1_000_000 - 98, 1_000_001)), "end"]

    on_workspace(body, tmp_path)


async def until_async(ask: Any, expected: object) -> None:
    async with asyncio.timeout(BOUND):
        while await ask() != expected:
            await asyncio.sleep(0.01)


def test_a_tail_of_long_lines_is_bounded(tmp_path: Path) -> None:
    async def body(mine: LocalWorkspace) -> None:
        async with program(mine, "head -c 3000000 /dev/zero | tr '\\0' x >&2; echo >&2; seq 3 >&2") as stream:
            assert await stream.wait() == ProgramEnd(0)
            assert await stream.stderr_tail() == "1\n2\n3\n"
        async with program(mine, "head -c 3000000 /dev/zero | tr '\\0' x >&2") as stream:
            assert await stream.wait() == ProgramEnd(0)
            assert await stream.stderr_tail() == "x" * 16_384

    on_workspace(body, tmp_path)


def test_how_a_program_ended_is_known(tmp_path: Path) -> None:
    async def body(mine: LocalWorkspace) -> None:
        for script, code in (("exit 7", 7), ("kill -9 $$", 128 + signal.SIGKILL), ("true", 0)):
            async with program(mine, script) as stream, asyncio.timeout(BOUND):
                assert await stream.wait() == ProgramEnd(code)
        for words, why in (
            (["no-such-program"], "no-such-program was not started: no-such-program is not on the PATH"),
            (["./no-such"], r"\./no-such was not started: there is no program \S+/no-such, or it can't be run here"),
            (["/etc/passwd"], "there is no program /etc/passwd, or it can't be run here"),
            ([], "its command line is empty"),
            (["a\0b"], "a NUL character"),
        ):
            with pytest.raises(ToolError, match=why):
                await mine.open_program(words, env={})
        with pytest.raises(ToolError, match="'A=B' is not the name of an environment variable"):
            await mine.open_program(["true"], env={"A=B": "c"})
        with pytest.raises(ToolError, match="can't enter the folder"):
            await mine.open_program(["true"], env={}, cwd=mine.root / "missing")

    on_workspace(body, tmp_path)


def test_output_before_the_end_is_read_after_it(tmp_path: Path) -> None:
    async def body(mine: LocalWorkspace) -> None:
        async with program(mine, "seq 1000") as stream, asyncio.timeout(BOUND):
            assert await stream.wait() == ProgramEnd(0)
            assert await read_all(stream) == b"".join(b"%d\n" % number for number in range(1, 1001))

    on_workspace(body, tmp_path)


def test_what_a_program_leaves_running_ends_with_it(tmp_path: Path) -> None:
    mark = f"603.{os.getpid()}"

    async def body(mine: LocalWorkspace) -> None:
        async with (
            program(mine, f"(trap '' TERM; setsid setsid sleep {mark} &); exit 5") as stream,
            asyncio.timeout(BOUND),
        ):
            assert await read_all(stream) == b""  # though it holds the pipe open
            assert await stream.wait() == ProgramEnd(5)
            await until(lambda: not living(mark))

    on_workspace(body, tmp_path)


def test_closing_ends_a_stubborn_tree(tmp_path: Path) -> None:
    async def body(mine: LocalWorkspace) -> None:
        stream = await mine.open_program(["bash", "-c", f"trap '' TERM; {TREE}"], env={})
        pids = await grown_tree(mine.root)
        await stream.close(0.2)
        assert not any(alive(pid) for pid in pids)
        assert (await stream.wait()).exit_code == 128 + signal.SIGKILL
        assert await stream.read() == b""

    on_workspace(body, tmp_path)


def test_closing_lets_a_program_end_by_itself(tmp_path: Path) -> None:
    async def body(mine: LocalWorkspace) -> None:
        stream = await mine.open_program(["bash", "-c", "echo up; cat; echo done >done; exit 4"], env={})
        assert await read_line(stream) == "up\n"
        await stream.close(BOUND)
        assert await stream.wait() == ProgramEnd(4)
        assert (mine.root / "done").read_text() == "done\n"
        stream = await mine.open_program(
            ["bash", "-c", "trap 'exit 6' TERM; echo up; while :; do sleep 0.1; done"], env={}
        )
        assert await read_line(stream) == "up\n"
        await stream.close(0.5)
        assert await stream.wait() == ProgramEnd(6)

    on_workspace(body, tmp_path)


def test_closing_ends_a_read_that_waits(tmp_path: Path) -> None:
    async def body(mine: LocalWorkspace) -> None:
        async with program(mine, "exec cat") as stream, asyncio.timeout(BOUND):
            reading = asyncio.ensure_future(stream.read())
            await stream.write(b"hi")
            assert await reading == b"hi"
            cancelled = asyncio.ensure_future(stream.read())
            await asyncio.sleep(0)
            cancelled.cancel()
            await asyncio.wait([cancelled])
            await stream.write(b"there")
            assert await stream.read() == b"there"
            reading = asyncio.ensure_future(stream.read())
            await asyncio.sleep(0)
            await asyncio.gather(stream.close(0.0), stream.close())
            assert await reading == b""

    on_workspace(body, tmp_path)


def test_a_program_cancelled_as_it_opens_does_not_run_on(tmp_path: Path) -> None:
    mark = f"604.{os.getpid()}"

    async def body(mine: LocalWorkspace) -> None:
        for turns in range(24):
            opening = asyncio.ensure_future(mine.open_program(["sleep", mark], env={}))
            for _ in range(turns):
                await asyncio.sleep(0)
            opening.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await (await opening).close(0.0)
        await until(lambda: not living(mark))

    on_workspace(body, tmp_path)


def test_a_cancelled_close_still_ends_the_program(tmp_path: Path) -> None:
    mark = f"605.{os.getpid()}"

    async def body(mine: LocalWorkspace) -> None:
        stream = await mine.open_program(["bash", "-c", f"trap '' TERM; echo up; sleep {mark}; sleep {mark}"], env={})
        assert await read_line(stream) == "up\n"
        closing = asyncio.ensure_future(stream.close(BOUND))
        await asyncio.sleep(0)
        closing.cancel()
        await asyncio.wait([closing])
        await until(lambda: not living(mark))

    on_workspace(body, tmp_path)


def test_its_environment_is_small_and_exact(tmp_path: Path) -> None:
    given = {
        "PATH": os.environ["PATH"],
        "HOME": "/home/ada",
        "LANG": "de_DE.UTF-8",
        "SECRET_OF_SERVER": "x",
        "OLDPWD": "/",
    }

    async def main() -> None:
        async with test_programs.open_workspace(tmp_path, variables=given) as mine:
            stream = await mine.open_program(["env", "-0"], env={"API_KEY": "k", "HOME": "/else"})
            said = dict(line.split("=", 1) for line in (await read_all(stream)).decode().split("\0") if line)
            await stream.close()
            wanted = {"PATH": given["PATH"], "HOME": "/else", "LANG": "de_DE.UTF-8", "TMPDIR": "/tmp", "API_KEY": "k"}
            assert said == wanted
            assert not mine.isolates_environment

    asyncio.run(main())


def test_it_works_in_the_workspace_and_is_no_task(tmp_path: Path) -> None:
    async def body(mine: LocalWorkspace) -> None:
        await ran(mine, "mkdir sub; printf '#!/bin/sh\necho from $0; pwd' >sub/tool; chmod +x sub/tool; echo old >file")
        async with program(mine, "pwd; cat ../file; echo new >../file; read", cwd=mine.root / "sub") as stream:
            said = await read_line(stream)
            while not said.endswith("old\n"):
                said += await read_line(stream)
            assert said == f"{mine.root}/sub\nold\n"
            await until(lambda: (mine.root / "file").read_text() == "new\n")
            assert await mine.list() == []
            assert await ran(mine, "cat file") == b"new\n"
        stream = await mine.open_program(["./tool"], env={}, cwd=mine.root / "sub")
        assert (await read_all(stream)).decode().splitlines()[1] == f"{mine.root}/sub"
        await stream.close()

    on_workspace(body, tmp_path)


def test_programs_count_as_commands(tmp_path: Path) -> None:
    async def main() -> None:
        async with test_programs.open_workspace(tmp_path, Limits(commands=2)) as mine:
            async with program(mine, "cat"), program(mine, "cat"):
                full = r"2 commands and programs are running, the most at once \(--limit commands\)"
                with pytest.raises(ToolError, match=full):
                    await mine.open_program(["cat"], env={})
                with pytest.raises(ToolError, match=full):
                    await mine.start("true")
            assert await ran(mine, "echo free") == b"free\n"

    asyncio.run(main())


def test_a_limit_that_a_program_reaches_is_named(tmp_path: Path) -> None:
    async def main() -> None:
        async with test_programs.open_workspace(tmp_path, Limits(cpu=1, file_size=2**20)) as mine:
            async with program(mine, "head -c 2000000 /dev/zero >large") as stream, asyncio.timeout(BOUND):
                end = await stream.wait()
                assert (end.exit_code, list(end.hits)) == (
                    128 + signal.SIGXFSZ,
                    ["the limit of 1,048,576 bytes of a file was reached (--limit file-size)"],
                )
            async with program(mine, "while :; do :; done") as stream, asyncio.timeout(BOUND):
                end = await stream.wait()
                assert list(end.hits) == ["the limit of 1 s of CPU time of a process was reached (--limit cpu)"]

    asyncio.run(main())


def test_programs_end_when_the_workspace_is_over_its_limit(tmp_path: Path) -> None:
    async def main() -> None:
        async with test_programs.open_workspace(tmp_path, Limits(workspace=2**20)) as mine:
            async with program(mine, "head -c 4000000 /dev/zero >large; sleep 600") as stream, asyncio.timeout(BOUND):
                end = await stream.wait()
                assert end.reason is not None and "(--limit workspace)" in end.reason
                assert [end.reason] == list(end.hits)
            with pytest.raises(ToolError, match=r"over its limit of 1,048,576 \(--limit workspace\): remove files"):
                await mine.open_program(["cat"], env={})
            await ran(mine, "rm large")
            async with program(mine, "echo well") as stream:
                assert await read_line(stream) == "well\n"

    asyncio.run(main())


def test_programs_end_with_their_workspace_and_cost_no_descriptor(tmp_path: Path) -> None:
    async def body(mine: LocalWorkspace) -> None:
        for _ in range(20):
            stream = await mine.open_program(["cat"], env={})
            await stream.write(b"hi")
            assert await stream.read() == b"hi"
            await stream.close()
        held = [await mine.open_program(["bash", "-c", "trap '' TERM; cat; sleep 600"], env={}) for _ in range(3)]
        reading = asyncio.ensure_future(held[0].read())
        await asyncio.sleep(0)
        await mine.close(0.2)
        assert await reading == b""
        assert (await held[1].wait()).reason == "the server stopped"
        with pytest.raises(ToolError, match="shutting down"):
            await mine.open_program(["cat"], env={})

    on_workspace(body, tmp_path)
    before = descriptors()
    on_workspace(body, tmp_path)
    assert descriptors() == before
    assert children_of(os.getpid()) == set()


def test_killing_all_of_a_person_ends_programs(tmp_path: Path) -> None:
    async def body(mine: LocalWorkspace) -> None:
        async with program(mine, "trap '' TERM; echo up; cat; sleep 600") as stream:
            assert await read_line(stream) == "up\n"
            await mine.kill_all()
            assert (await stream.wait()).exit_code == 128 + signal.SIGKILL

    on_workspace(body, tmp_path)


def test_killing_the_server_kills_its_programs(tmp_path: Path) -> None:
    mark = f"606.{os.getpid()}"
    command = f"trap '' TERM; (setsid setsid sleep {mark} &) ; sleep {mark} & echo up; sleep {mark}"
    script = f"""
import asyncio, pathlib
from tests.tools.shell_commands import workspace
async def main():
    async with workspace(pathlib.Path({str(tmp_path)!r})) as mine:
        streams = [await mine.open_program(["bash", "-c", {command!r}], env={{}}) for _ in range(3)]
        print("up", flush=True)
        await asyncio.sleep(60)
asyncio.run(main())
"""
    host = hosted(script)
    try:
        assert host.stdout is not None and host.stdout.readline() == "up\n"
        wait_for(lambda: len(living(mark)) == 9)
        below = children_of(host.pid)
    finally:
        host.send_signal(signal.SIGKILL)
        host.communicate()
    wait_for(lambda: not living(mark))
    wait_for(lambda: not below & {pid for pid, *_ in processes()})

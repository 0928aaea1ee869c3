"""How the size of a workspace is counted: as du counts it, and in one walk through its folders."""

import asyncio
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.clients.raw_client import ROOT
from tests.tools.shell_commands import BOUND, until
from toolgate.tools.workspace.commands import disk_usage
from toolgate.tools.workspace.commands.disk_usage import COUNT, DiskUsage, DiskUsageWatcher
from toolgate.tools.workspace.limits import Limits
from toolgate.tools.workspace.processes.zygote import CommandRunner

NO_DESCRIPTOR = """
import asyncio, resource, sys
from pathlib import Path
from types import SimpleNamespace
from toolgate.tools.workspace.commands.disk_usage import DiskUsageWatcher
from toolgate.tools.workspace.limits import Limits
from toolgate.tools.workspace.processes.process import CommandStartError

async def start(launch, take):
    raise CommandStartError("it is not needed")

async def main():
    place = SimpleNamespace(uid=None, limits=Limits(), server_runner=SimpleNamespace(start=start))
    watcher = DiskUsageWatcher(place, [Path(sys.argv[1])], 0, print)
    resource.setrlimit(resource.RLIMIT_NOFILE, (3, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
    watcher.command_started()
    watcher.command_ended()
    await watcher._watching
    print("measured")

asyncio.run(main())
"""

WALKERS = ("du", "find", "ls", "tree", "stat")


def make_workspace(folder: Path) -> Path:
    root = folder / "work space"
    (root / "below" / "deeper").mkdir(parents=True)
    (root / "large").write_bytes(b"x" * 300_000)
    (root / "below" / "small").write_text("small")
    os.link(root / "large", root / "below" / "another name")
    with (root / "below" / "sparse").open("wb") as file:
        file.truncate(2**30)
    (root / "line\nbreak").touch()
    (root / "link").symlink_to(root / "large")
    os.mkfifo(root / "fifo")
    return root


def run(words: list[str], path: str = os.environ["PATH"]) -> str:
    return subprocess.run(
        words, env={"PATH": path}, stdout=subprocess.PIPE, text=True, timeout=BOUND, check=True
    ).stdout


def test_a_workspace_is_counted_as_du_counts_it(tmp_path: Path) -> None:
    root, other = make_workspace(tmp_path), tmp_path / "other"
    other.mkdir()
    os.link(root / "large", other / "third name")
    folders = [str(root), str(other)]
    by_du = [run(["du", "-xsc", each, *folders]).splitlines()[-1].split()[0] for each in ("-B1", "--inodes")]
    assert run(["bash", "-c", COUNT, "count", "-1", "0", *folders]).splitlines() == by_du


def test_a_workspace_is_counted_in_one_walk(tmp_path: Path) -> None:
    root, programs, log = make_workspace(tmp_path), tmp_path / "programs", tmp_path / "log"
    programs.mkdir()
    for name in WALKERS:
        if real := shutil.which(name):
            (programs / name).write_text(f'#!/bin/sh\necho {name} >>{log}\nexec {real} "$@"\n')
            (programs / name).chmod(0o755)
    run(["bash", "-c", COUNT, "count", "-1", "0", str(root)], f"{programs}:{os.environ['PATH']}")
    assert len(log.read_text().splitlines()) == 1


def test_a_machine_without_a_free_descriptor_does_not_end_the_measuring(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", NO_DESCRIPTOR, str(tmp_path)],
        capture_output=True,
        text=True,
        timeout=BOUND,
        check=False,
        cwd=ROOT,
    )
    assert (done.returncode, done.stdout) == (0, "measured\n"), done.stderr
    assert "cannot measure the size" in done.stderr


def test_the_end_of_a_program_that_waited_long_is_measured_soon(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in (("FIRST", 0.01), ("SLOWER", 10**6), ("QUIET_MOST", 600.0), ("SHARE", 0)):
        monkeypatch.setattr(disk_usage, name, value)
    runner = CommandRunner()

    async def main() -> None:
        place: Any = SimpleNamespace(uid=None, limits=Limits(), server_runner=runner)
        watcher = DiskUsageWatcher(place, [tmp_path], 0, print)
        watcher.program_started()
        await until(lambda: watcher.usage.entries > 0)
        await asyncio.sleep(0.2)  # by now it is measured seldom
        watcher.program_ended()
        await until(lambda: not watcher.is_measuring)
        await runner.close()

    asyncio.run(main())


def test_a_program_that_waits_is_measured_seldom_and_soon_when_something_begins(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in (("FIRST", 0.01), ("SLOWER", 10**6), ("QUIET_MOST", 600.0), ("SHARE", 0)):
        monkeypatch.setattr(disk_usage, name, value)
    runner, measured = CommandRunner(), 0

    class CountingWatcher(DiskUsageWatcher):
        async def _measure(self, within: float = disk_usage.LONGEST) -> DiskUsage:
            nonlocal measured
            usage = await super()._measure(within)
            measured += 1
            return usage

    async def main() -> None:
        place: Any = SimpleNamespace(uid=None, limits=Limits(), server_runner=runner)
        watcher = CountingWatcher(place, [tmp_path], 0, print)

        async def check_news(begin: Callable[[], None]) -> None:
            """Wait until the watcher sleeps long, and is woken."""
            before = -1
            while before != measured:
                before = measured
                await asyncio.sleep(0.2)
            begin()
            await until(lambda: measured > before)

        watcher.program_started()
        for begin in (watcher.note_input, watcher.program_started, watcher.command_started):
            await check_news(begin)
            if begin == watcher.command_started:
                watcher.command_ended()
        await check_news(watcher.note_input)
        (tmp_path / "large").write_bytes(b"x" * 100_000)
        watcher.note_input()
        await until(lambda: watcher.usage.size > 100_000)
        for _ in range(2):
            watcher.program_ended()
        await until(lambda: not watcher.is_measuring and not runner._busy)
        await runner.close()

    asyncio.run(main())

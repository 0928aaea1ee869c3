"""Measuring a workspace where the machine is short of something."""

import subprocess
import sys
from pathlib import Path

from tests.clients.raw_client import ROOT
from tests.tools.shell_commands import BOUND

NO_DESCRIPTOR = """
import asyncio, resource, sys
from pathlib import Path
from types import SimpleNamespace
from toolgate.tools.workspace.disk_usage import DiskUsageWatcher
from toolgate.tools.workspace.limits import Limits
from toolgate.tools.workspace.process import CommandStartError

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

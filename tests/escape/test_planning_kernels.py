"""While a plan is active, Bash changes nothing on kernels with an older Landlock, and is refused on those without."""

import asyncio
import contextlib
import os
import sys
import uuid
from collections.abc import AsyncIterator, Sequence
from functools import partial
from pathlib import Path

import pytest

from tests.clients.raw_client import PATIENCE, served
from tests.escape.ground import SYSTEM_PYTHON
from tests.escape.test_planning import check_writes, contents, folder, prepare, prepare_outside, verdicts
from tests.escape.writes import WRITES
from tests.escape.writes.write import Write
from toolgate.tools.workspace.commands.environment import UnsandboxedEnvironment
from toolgate.tools.workspace.limits import UNLIMITED
from toolgate.tools.workspace.local_workspace import LocalWorkspace
from toolgate.tools.workspace.processes import landlock
from toolgate.tools.workspace.processes.zygote import CommandRunner
from toolgate.tools.workspace.sandbox.read_only_filter import build_read_only

ROOT = pytest.mark.skipif(os.geteuid() != 0, reason="only root can try all ways to write")
CHEAP = [each for each in WRITES if not each.dear]
FIFOS = frozenset(each.name for each in CHEAP if "fifo that is read" in each.name)
OF_ITSELF = frozenset((  # changes to a sandbox of the command's own, which ends with it
    "opens a device", "writes its own name", "writes its own memory", "opens /proc/self/uid_map",
    "signals its supervisor", "protects itself when memory is short",
))  # fmt: skip
VERSIONS = {3: "Linux 6.2", 4: "6.7", 5: "6.10"}  # without control of devices, TCP, or other processes' signals
REFUSE_LANDLOCK = """
import ctypes, errno, os, sys
from toolgate.tools.workspace.sandbox.syscalls import FilterRules
rules = FilterRules()
rules.refuse("landlock_create_ruleset", error=errno.{error})
program = rules.export()
loaded = ctypes.create_string_buffer(program)
class Program(ctypes.Structure):
    _fields_ = (("length", ctypes.c_ushort), ("instructions", ctypes.c_void_p))
prctl = ctypes.CDLL(None, use_errno=True).prctl
prctl(38, 1, 0, 0, 0)
assert prctl(22, 2, ctypes.byref(Program(len(program) // 8, ctypes.addressof(loaded))), 0, 0) == 0
os.execv(sys.executable, [sys.executable, "-m", "toolgate.server", *sys.argv[1:]])
"""


def without_landlock(error: str) -> Sequence[str]:
    """Return the command of a server whose kernel, or engine, answers calls of Landlock with `error`."""
    return (sys.executable, "-c", REFUSE_LANDLOCK.format(error=error))


@pytest.mark.brief("EOPNOTSUPP")
@pytest.mark.parametrize("error", ["ENOSYS", "EOPNOTSUPP", "EPERM"])
def test_without_landlock_bash_is_refused_and_says_why(tmp_path: Path, error: str) -> None:
    with served(tmp_path, command=without_landlock(error)) as server:
        server.text("PlanMode", {"action": "enter", "goal": "look"})
        answer = server.call("Bash", {"command": "touch made"})
        assert answer["isError"]
        assert [block["text"] for block in answer["content"]] == [
            "Bash is refused while a plan is active: finish planning with PlanMode exit first. It can't run read-only "
            "here: it needs Landlock, which Linux has since 6.2 and a container's engine may refuse, or --sandbox bwrap"
        ]
        server.text("PlanMode", {"action": "exit"})
        assert server.text("Bash", {"command": "ls"}) == "(no output)"


@pytest.mark.parametrize("version", [-1, 0, 1, 2])
def test_landlock_before_linux_6_2_is_not_enough(version: int) -> None:
    obstacle = build_read_only(version, needs_landlock=True)
    assert isinstance(obstacle, str) and "Linux has since 6.2" in obstacle
    mounted = build_read_only(version, needs_landlock=False)
    assert not isinstance(mounted, str) and mounted.landlock_version == 0


@ROOT
@pytest.mark.soak  # 20 s
def test_read_only_mounts_hold_without_landlock_except_fifos() -> None:
    # CANARY is the number of a process elsewhere; in the command's own process namespace it is one of its own, or none
    writes = [each for each in CHEAP if "CANARY" not in each.script]
    check_writes("bwrap", writes, without_landlock("ENOSYS"), FIFOS | OF_ITSELF)


@ROOT
@pytest.mark.brief
@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("writes", [CHEAP[::3], CHEAP], ids=["some", "all"])
def test_no_way_to_write_comes_off_on_an_older_kernel(version: int, writes: Sequence[Write]) -> None:
    asyncio.run(check_version(version, writes))


async def check_version(version: int, writes: Sequence[Write]) -> None:
    assert landlock.find_version() >= version
    with folder() as made:
        async with open_workspace(made, version) as mine:
            out, mark = prepare_outside(made / "out"), f"toolgate-{uuid.uuid4().hex}"
            prepare(mine.root, writes)
            exports = f"export OUT={out} NAME={mark} SERVER={os.getpid()} CANARY=$(cat listening)"
            await mine.start(f"exec {SYSTEM_PYTHON} -I listener.py {mark}", background=True)
            async with asyncio.timeout(PATIENCE):
                while not (mine.root / "listening").exists() or not (mine.root / "listening").read_text():
                    await asyncio.sleep(0.02)
            assert await output(mine, f"{exports}; {SYSTEM_PYTHON} -I runner.py make scripts.json") == ""
            assert await mine.find_read_only_obstacle() is None
            before = contents(mine.root, out)

            shown = await output(mine, f"{exports}; {SYSTEM_PYTHON} -I runner.py plan scripts.json", read_only=True)

            found = verdicts(shown)
            assert {name: what for name, (kind, what) in found.items() if kind == "changed"} == {}
            assert {*found} == {each.name for each in writes}
            assert contents(mine.root, out) == before


async def output(workspace: LocalWorkspace, command: str, *, read_only: bool = False) -> str:
    run = await workspace.start(command, timeout=3 * PATIENCE, read_only=read_only)
    assert await workspace.wait(run, 3 * PATIENCE)
    return (await workspace.read(run, 0, 2**20)).decode()


@contextlib.asynccontextmanager
async def open_workspace(made: Path, version: int) -> AsyncIterator[LocalWorkspace]:
    """Yield a workspace on a kernel with this version of Landlock."""
    (made / "root").mkdir()
    runner = CommandRunner()
    confinement = partial(build_read_only, version, needs_landlock=True)
    environment = UnsandboxedEnvironment(runner, UNLIMITED, confinement)
    variables = {"PATH": os.environ["PATH"]}
    workspace = LocalWorkspace(
        made / "root", made / "spool", variables, lambda _: None, command_environment=environment
    )
    try:
        yield workspace
    finally:
        await workspace.close(0.1)
        await runner.close()

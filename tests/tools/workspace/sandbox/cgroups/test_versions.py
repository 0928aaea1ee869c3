"""The files of cgroups of each version, their places, and v2's rules on the kernel's own files.

The kernel binds memory, pids and cpu to v1 or to v2, never to both. On a v1 machine v2's limits are tested in plain
files; entering, killing, refusing and removing on the real v2."""

import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.clients.raw_client import PATIENCE, eventually
from toolgate.tools.workspace.sandbox.cgroups import Group, Hits, cgroups
from toolgate.tools.workspace.sandbox.cgroups.cgroups import Cgroups, Hierarchy
from toolgate.tools.workspace.sandbox.cgroups.group import GroupFolder
from toolgate.tools.workspace.sandbox.cgroups.kill import clear
from toolgate.tools.workspace.sandbox.cgroups.server_group import ServerGroup, new_name
from toolgate.tools.workspace.sandbox.cgroups.versions import BUSY, V1, V2, Allowance, CgroupVersion

ALL = frozenset({"memory", "pids", "cpu", "cpuacct"})
SOME, NONE = Allowance(memory=2**26, processes=20, weight=25), Allowance()

WRITTEN = {
    "v1": (
        V1,
        {
            "memory.limit_in_bytes": ("67108864", "-1"),
            "memory.memsw.limit_in_bytes": ("67108864", "-1"),
            "pids.max": ("20", "max"),
            "cpu.shares": ("256", "1024"),
        },
    ),
    "v1 that counts no swap": (
        V1,
        {
            "memory.limit_in_bytes": ("67108864", "-1"),
            "memory.swappiness": ("0", "0"),
            "pids.max": ("20", "max"),
            "cpu.shares": ("256", "1024"),
        },
    ),
    "v2": (
        V2,
        {
            "memory.max": ("67108864", "max"),
            "memory.swap.max": ("0", "max"),
            "pids.max": ("20", "max"),
            "cpu.weight": ("25", "100"),
        },
    ),
    "v2 that counts no swap": (
        V2,
        {"memory.max": ("67108864", "max"), "pids.max": ("20", "max"), "cpu.weight": ("25", "100")},
    ),
}
READ = {
    "v1": (
        V1,
        {
            "memory.oom_control": "oom_kill_disable 0\nunder_oom 0\noom_kill 3\n",
            "pids.events": "max 7\n",
            "cpuacct.usage": "2500000000\n",
        },
    ),
    "v2": (
        V2,
        {
            "memory.events": "low 0\nhigh 0\nmax 9\noom 5\noom_kill 3\noom_group_kill 0\n",
            "pids.events": "max 7\n",
            "cpu.stat": "usage_usec 2500000\nuser_usec 2000000\nsystem_usec 500000\n",
        },
    ),
}


@pytest.mark.parametrize("kind", WRITTEN)
def test_limits_are_written_in_the_format_of_the_version(kind: str, tmp_path: Path) -> None:
    dialect, files = WRITTEN[kind]
    for name in files:
        (tmp_path / name).touch()
    for at, allowance in enumerate((SOME, NONE)):
        GroupFolder(tmp_path, ALL, dialect).limit(allowance)
        assert {name: (tmp_path / name).read_text() for name in files} == {
            name: said[at] for name, said in files.items()
        }
    assert sorted(os.listdir(tmp_path)) == sorted(files), "none is made"


@pytest.mark.parametrize("dialect", [V1, V2], ids=["v1", "v2"])
def test_weights_and_processes_stay_within_what_the_kernel_takes(dialect: CgroupVersion, tmp_path: Path) -> None:
    for name in ("pids.max", "cpu.shares", "cpu.weight"):
        (tmp_path / name).touch()
    GroupFolder(tmp_path, frozenset({"pids", "cpu"}), dialect).limit(Allowance(processes=2**53, weight=2**53))
    assert (tmp_path / "pids.max").read_text() == "max"
    assert (tmp_path / "cpu.shares").read_text() == ("262144" if dialect is V1 else "")
    assert (tmp_path / "cpu.weight").read_text() == ("10000" if dialect is V2 else "")


@pytest.mark.parametrize("kind", READ)
def test_hits_and_use_are_read_in_the_format_of_the_version(kind: str, tmp_path: Path) -> None:
    dialect, files = READ[kind]
    group = Group([GroupFolder(tmp_path, ALL, dialect)], NONE)
    assert group.hits() == Hits()
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    assert group.hits() == Hits(oom=3, processes=7)
    assert group.cpu_seconds() == 2.5


def test_an_uncounted_statistic_is_none(tmp_path: Path) -> None:
    group = Group([GroupFolder(tmp_path, frozenset({"pids"}), V1)], NONE)
    assert group.cpu_seconds() is None


# Lines of mountinfo and of /proc/self/cgroup, and the resulting folder of our group.
PLACES = {
    "v1 at the root": ("/ {0}/pids rw,relatime - cgroup cgroup rw,pids", "8:pids:/", "pids", V1),
    "v1 below": ("/ {0}/pids rw - cgroup cgroup rw,pids", "8:pids:/system.slice/a b:c", "pids/system.slice/a b:c", V1),
    "of a container": ("/docker/1 {0}/pids rw - cgroup none rw,pids", "8:pids:/docker/1", "pids", V1),
    "below a container's": ("/docker/1 {0}/pids rw - cgroup none rw,pids", "8:pids:/docker/1/x", "pids/x", V1),
    "with a blank": ("/ {0}/p\\040ids rw shared:9 - cgroup cgroup rw,pids", "8:pids:/", "p ids", V1),
    "v2": ("/ {0}/all rw,nosuid - cgroup2 cgroup2 rw,nsdelegate", "0::/unit", "all/unit", V2),
    "v2 in our leaf": ("/ {0}/all rw - cgroup2 cgroup2 rw", "0::/unit/toolgate-server", "all/unit", V2),
    "outside what is mounted": ("/docker/1 {0}/pids rw - cgroup none rw,pids", "8:pids:/docker/12", None, V1),
    "above a namespace": ("/ {0}/pids rw - cgroup none rw,pids", "8:pids:/../pids", None, V1),
    "named only": ("/ {0}/pids rw - cgroup none rw,name=systemd", "8:name=systemd:/", None, V1),
    "another file system": ("/ {0}/pids rw - tmpfs cgroup rw,pids", "8:pids:/", None, V1),
}


@pytest.mark.parametrize("place", PLACES)
def test_our_own_group_is_found_where_the_kernel_says(
    place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mount, line, own, dialect = PLACES[place]
    top = tmp_path / (own or "pids")
    folders = {top, tmp_path / "pids", top / "toolgate-server"}
    for folder in folders:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "cgroup.procs").write_text(f"1\n{os.getpid()}\n")
    (top / "cgroup.controllers").write_text("cpuset pids hugetlb\n")
    proc = tmp_path / "proc"
    proc.mkdir()
    (proc / "mountinfo").write_text(f"23 1 0:2 / /proc rw - proc proc rw\n31 23 0:29 {mount.format(tmp_path)}\n")
    (proc / "cgroup").write_text(f"2:cpuacct:/elsewhere\n{line}\n")
    monkeypatch.setattr(cgroups, "PROC", proc)
    expected = [] if own is None else [Hierarchy(top, frozenset({"pids"}), dialect)]
    assert cgroups.find_hierarchies(ALL) == expected


def test_a_group_that_we_are_not_in_is_not_ours(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "cgroup.procs").write_text("1\n")
    (tmp_path / "mountinfo").write_text(f"31 23 0:29 / {tmp_path} rw - cgroup cgroup rw,pids\n")
    (tmp_path / "cgroup").write_text("8:pids:/\n")
    monkeypatch.setattr(cgroups, "PROC", tmp_path)
    assert cgroups.find_hierarchies(ALL) == []


# The real v2, with any controller that v1 leaves to it: often hugetlb, which limits nothing in these tests.


@pytest.fixture
def delegated() -> Iterator[tuple[Path, frozenset[str]]]:
    """Yield a group of v2, and controllers it can pass on."""
    mounts = [
        each.split()[4] for each in Path("/proc/self/mountinfo").read_text().splitlines() if " - cgroup2 " in each
    ]
    if not mounts or not os.access(mounts[0], os.W_OK):
        pytest.skip("no cgroup v2 is mounted and writable here")
    root = Path(mounts[0])
    offered = (root / "cgroup.controllers").read_text().split()[:1]
    for controller in offered:
        (root / "cgroup.subtree_control").write_text(f"+{controller}")
    group = root / f"toolgate-test-{uuid.uuid4().hex}"
    group.mkdir()
    yield group, frozenset(offered)
    assert clear(group, V2.halt, time.monotonic() + PATIENCE)


def sleeper(entrance: Path) -> subprocess.Popen[str]:
    script = 'echo 0 >"$1"; sleep 60 & sleep 60; wait'
    return subprocess.Popen(["bash", "-c", script, "bash", str(entrance)], text=True)


def end(process: subprocess.Popen[str]) -> int:
    process.kill()
    return process.wait(PATIENCE)


def test_v2_takes_kills_and_removes(delegated: tuple[Path, frozenset[str]]) -> None:
    top, controllers = delegated
    assert V2.prepare(top, controllers, False) == {}
    server_group = ServerGroup(GroupFolder(top / new_name(), controllers, V2))
    assert set((server_group.folder.path / "cgroup.subtree_control").read_text().split()) == controllers
    found = Cgroups([server_group], {})
    group = found.group("0123456789abcdef")
    process = sleeper(group.procs_files[0])
    assert eventually(lambda: len(group.processes()) == 3)
    assert group.kill()
    assert end(process) == -signal.SIGKILL
    assert group.processes() == []
    seconds = group.cpu_seconds()
    assert seconds is not None and 0 < seconds < PATIENCE
    process = sleeper(group.procs_files[0])
    assert eventually(lambda: len(group.processes()) == 3)
    assert found.close()
    assert end(process) == -signal.SIGKILL
    assert not server_group.folder.path.exists()


def test_v2_sweeps_a_dead_servers_group_and_no_living_one(delegated: tuple[Path, frozenset[str]]) -> None:
    top, controllers = delegated
    V2.prepare(top, controllers, False)
    dead, mine = (Cgroups([ServerGroup(GroupFolder(top / new_name(), controllers, V2))], {}) for _ in range(2))
    group = dead.group("0123456789abcdef")
    process = sleeper(group.procs_files[0])
    assert eventually(lambda: len(group.processes()) == 3)
    assert mine.sweep() == {}
    (server_group,) = dead._server_groups
    assert server_group._lock is not None
    os.close(server_group._lock)  # as the kernel does for a server that dies
    server_group._lock = None
    assert mine.sweep() == {server_group.folder.path.name: ""}
    assert end(process) == -signal.SIGKILL
    assert mine.close()


MOVE = """
import os, sys
from pathlib import Path
from toolgate.tools.workspace.sandbox.cgroups.versions import V2
top, move = Path(sys.argv[1]), sys.argv[2] == "move"
(top / "cgroup.procs").write_text("0")
try:
    print(dict(V2.prepare(top, frozenset(sys.argv[3:]), move)))
except OSError as error:
    print(error.strerror)
print(Path("/proc/self/cgroup").read_text().split("0::")[1].strip().removeprefix("/" + top.name) or "/")
print((top / "cgroup.subtree_control").read_text().strip())
"""


def moved(top: Path, move: str, controllers: frozenset[str]) -> list[str]:
    command = [sys.executable, "-c", MOVE, str(top), move, *controllers]
    return subprocess.run(command, text=True, capture_output=True, timeout=PATIENCE, check=True).stdout.splitlines()


def test_v2_moves_the_server_to_a_leaf_only_when_told(delegated: tuple[Path, frozenset[str]]) -> None:
    top, controllers = delegated
    assert moved(top, "stay", controllers) == [BUSY, "/", ""]
    assert moved(top, "move", controllers) == ["{}", "/toolgate-server", " ".join(controllers)]
    assert V2.top(top / "toolgate-server") == top


def test_v2_moves_the_server_back_when_others_are_in_its_group(delegated: tuple[Path, frozenset[str]]) -> None:
    top, controllers = delegated
    other = sleeper(top / "cgroup.procs")
    assert eventually(lambda: len((top / "cgroup.procs").read_text().split()) == 3)
    assert moved(top, "move", controllers) == ["processes other than the server are in it", "/", ""]
    assert not (top / "toolgate-server").exists()
    end(other)


def test_v2_knows_a_leaf_that_systemd_made(delegated: tuple[Path, frozenset[str]]) -> None:
    top, _ = delegated
    leaf = top / "main"
    leaf.mkdir()
    assert V2.top(leaf) == leaf
    os.setxattr(top, "user.delegate", b"1")
    assert V2.top(leaf) == top
    assert V2.top(top) == top
    leaf.rmdir()


def test_v2_says_which_controller_it_will_not_pass_on(delegated: tuple[Path, frozenset[str]]) -> None:
    top, controllers = delegated
    refused = V2.prepare(top, controllers | {"nonsense"}, False)
    assert refused == {"nonsense": f"{top}/cgroup.subtree_control: Invalid argument"}
    assert set((top / "cgroup.subtree_control").read_text().split()) == controllers

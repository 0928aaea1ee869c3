"""Control groups: their limits, and that no process outlives its group's end."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.clients.raw_client import PATIENCE, eventually
from tests.folder_contents import find_folders
from toolgate.tools.workspace.sandbox import cgroups
from toolgate.tools.workspace.sandbox.cgroups import Cgroups, Group, Hits

MEND = "run the tests as root with a writable /sys/fs/cgroup, as `docker run --privileged --cgroupns=host` has"
NAME = "0123456789abcdef"
MIB = 2**20
ENTER = 'for each in $ENTRANCES; do echo 0 >"$each" || exit 90; done; exec "$@"'
HOG = f"""
held = bytearray(256 * {MIB})
for at in range(0, len(held), 4096):
    held[at] = 1
print("had it", flush=True)
"""
FORKER = """
import os, time
made = refused = 0
while made + refused < 60:
    try:
        if os.fork() == 0:
            time.sleep(60)
            os._exit(0)
        made += 1
    except BlockingIOError:
        refused += 1
print(made, refused, flush=True)
time.sleep(60)
"""
BOMB = """
import os, time
until = time.monotonic() + 20
print("lit", flush=True)
while time.monotonic() < until:
    try:
        os.fork()
    except BlockingIOError:
        pass
"""
DAEMON = """
import os, signal, sys, time
for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
    signal.signal(number, signal.SIG_IGN)
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        print(os.getpid(), flush=True)
        time.sleep(60)
    os._exit(0)
os.wait()
time.sleep(60)
"""
THREAD = """
import ctypes, os, threading, time
threading.Thread(target=time.sleep, args=(60,)).start()
print("alone", flush=True)
ctypes.CDLL(None).pthread_exit(None)
"""
SERVER = """
import subprocess, sys, time
from toolgate.tools.workspace.sandbox import cgroups
found = cgroups.find()
group = found.group(sys.argv[1], processes=20)
enter = 'for each in "$@"; do echo 0 >"$each"; done; (sleep 60 & echo $!; wait)'
subprocess.Popen(["bash", "-c", enter, "bash", *map(str, group.procs_files)], start_new_session=True)
print(group.procs_files[0].parent.parent.name, flush=True)
time.sleep(60)
"""


def had(found: Cgroups | str) -> Cgroups:
    if isinstance(found, str):
        pytest.fail(f"no cgroup can be had here ({found}): {MEND}")
    return found


@pytest.fixture
def found() -> Iterator[Cgroups]:
    found = had(cgroups.find())
    yield found
    assert found.close()


def started(group: Group, *command: str) -> subprocess.Popen[str]:
    environment = {"PATH": os.environ["PATH"], "ENTRANCES": " ".join(map(str, group.procs_files))}
    return subprocess.Popen(["bash", "-c", ENTER, "bash", *command], env=environment, text=True, stdout=subprocess.PIPE)


def python(group: Group, program: str) -> subprocess.Popen[str]:
    return started(group, sys.executable, "-S", "-c", program)


def line(process: subprocess.Popen[str]) -> str:
    """Return its next line; the command bounds the wait."""
    assert process.stdout is not None
    return process.stdout.readline().strip()


def end(process: subprocess.Popen[str]) -> int:
    process.kill()
    with process:
        return process.wait(PATIENCE)


def alive(pid: int) -> bool:
    try:
        return " Z " not in Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2][:3]
    except OSError:
        return False


def houses(name: str) -> list[Path]:
    return find_folders(Path("/sys/fs/cgroup"), name)  # others' groups come and go meanwhile


def test_this_machine_has_what_limits_memory_processes_and_cpu(found: Cgroups) -> None:
    assert found.lacking == {}, MEND
    assert "(memory, pids, cpu)" in str(found)


def test_a_fork_bomb_gets_no_more_processes_than_its_group_has(found: Cgroups) -> None:
    group = found.group(NAME, processes=20)
    forker = python(group, FORKER)
    assert line(forker) == "19 41"
    members = group.processes()
    assert len(members) == 20
    assert group.hits() == Hits(oom=0, processes=41)
    assert group.hits() == Hits(), "told once"
    assert group.close()
    assert end(forker) == -signal.SIGKILL
    assert not any(map(alive, members))


def test_of_a_group_out_of_memory_the_largest_dies_and_the_hit_is_told(found: Cgroups) -> None:
    group = found.group(NAME, memory=64 * MIB)
    bystander, hog = started(group, "sleep", "60"), python(group, HOG)
    assert hog.wait(PATIENCE) == -signal.SIGKILL
    end(hog)
    assert group.hits() == Hits(oom=1)
    assert bystander.poll() is None
    assert group.kill()
    end(bystander)


def test_zero_is_no_limit(found: Cgroups) -> None:
    group = found.group(NAME, memory=0, processes=0)
    hog, forker = python(group, HOG), python(group, FORKER)
    assert line(hog) == "had it"
    assert line(forker) == "60 0"
    assert group.hits() == Hits()
    assert group.close()
    end(hog)
    end(forker)


def test_a_limit_can_be_raised_and_lowered_and_lifted(found: Cgroups) -> None:
    for memory in (64 * MIB, 512 * MIB, 128 * MIB, 0, 64 * MIB):
        group = found.group(NAME, memory=memory, processes=memory // MIB)
        hog = python(group, HOG)
        assert (line(hog) == "had it") == (memory in (0, 512 * MIB))
        hog.wait(PATIENCE)
        end(hog)


def test_kill_ends_what_forked_away_and_ignores_signals_and_nothing_else(found: Cgroups) -> None:
    group, other = found.group(NAME, processes=50), found.group(NAME[::-1])
    bystander, tree = started(other, "sleep", "60"), python(group, DAEMON)
    daemon = int(line(tree))
    assert {daemon, tree.pid} <= set(group.processes())
    assert bystander.pid not in group.processes()
    assert group.kill()
    assert not alive(daemon)
    assert end(tree) == -signal.SIGKILL
    assert bystander.poll() is None
    assert other.close()
    end(bystander)


def test_a_killed_group_can_be_used_again_within_its_limits(found: Cgroups) -> None:
    group = found.group(NAME, processes=20)
    first = started(group, "sleep", "60")
    assert eventually(lambda: group.processes() == [first.pid])
    assert group.kill()
    assert end(first) == -signal.SIGKILL
    group.hits()
    second = python(group, FORKER)
    assert line(second) == "19 41"
    assert group.close()
    end(second)


def test_kill_outruns_a_fork_bomb(found: Cgroups) -> None:
    group = found.group(NAME, processes=100)
    bomb = python(group, BOMB)
    assert line(bomb) == "lit"
    assert eventually(lambda: group.hits().processes > 0)
    assert group.kill()
    assert group.processes() == []
    end(bomb)


def test_a_process_whose_first_thread_has_ended_is_killed_too(found: Cgroups) -> None:
    group = found.group(NAME)
    process = python(group, THREAD)
    assert line(process) == "alone"
    assert eventually(lambda: Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z")
    assert group.processes() == [process.pid]
    assert group.close()
    assert end(process) == -signal.SIGKILL


def test_groups_made_inside_a_group_go_with_it(found: Cgroups) -> None:
    group = found.group(NAME)
    for entrance in group.procs_files:
        (entrance.parent / "inner" / "most").mkdir(parents=True)
    process = started(
        group,
        "bash",
        "-c",
        "for each in $ENTRANCES; do echo 0 >${each%/*}/inner/most/cgroup.procs; done; echo in; exec sleep 60",
    )
    assert line(process) == "in"
    assert group.processes() == [process.pid]
    assert group.close()
    assert end(process) == -signal.SIGKILL
    assert not any(entrance.parent.exists() for entrance in group.procs_files)


def test_a_closed_group_can_not_be_entered_and_closes_again(found: Cgroups) -> None:
    group = found.group(NAME)
    assert group.close()
    late = started(group, "sleep", "60")
    assert late.wait(PATIENCE) == 90
    end(late)
    assert group.close()
    assert (group.processes(), group.hits()) == ([], Hits())


@pytest.mark.soak  # it compares groups, which needs an idle machine
def test_a_group_gives_way_to_the_server_and_tells_its_cpu_time(found: Cgroups) -> None:
    group = found.group(NAME)
    cpu = min(os.sched_getaffinity(0))
    burn = f"""
import os, sys, time
os.sched_setaffinity(0, {{{cpu}}})
print("ready", flush=True)
sys.stdin.readline()
until = time.monotonic() + 1
while time.monotonic() < until: pass
print(time.process_time(), flush=True)
"""
    environment = {"PATH": os.environ["PATH"], "ENTRANCES": ""}
    outside, inside = (
        subprocess.Popen(
            ["bash", "-c", ENTER, "bash", sys.executable, "-S", "-c", burn],
            env={**environment, "ENTRANCES": entrances},
            text=True,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        for entrances in ("", " ".join(map(str, group.procs_files)))
    )
    for process in (outside, inside):
        assert line(process) == "ready"
    for process in (outside, inside):
        assert process.stdin is not None
        process.stdin.write("go\n")
        process.stdin.flush()
    of_server, of_group = float(line(outside)), float(line(inside))
    seconds = group.cpu_seconds()
    end(outside)
    end(inside)
    assert of_server > 2 * of_group, "its weight is a quarter"
    assert seconds is not None and of_group * 0.5 < seconds < of_group + 0.5


def test_the_weight_of_all_groups_together_can_be_chosen() -> None:
    found = had(cgroups.find(weight=50))
    (server_group,) = {
        each.parent.parent for each in found.group(NAME, weight=200).procs_files if "cpu" in each.parts
    } or {None}
    if server_group is None:
        pytest.fail(f"no cpu controller of v1 is mounted under its name here: {MEND}")
    assert [int((each / "cpu.shares").read_text()) for each in (server_group, server_group / NAME)] == [512, 2048]
    assert found.close()


def test_groups_can_be_made_and_closed_on_many_threads_at_once(found: Cgroups) -> None:
    def used(number: int) -> tuple[bool, bool]:
        group = found.group(f"{number % 4:016x}", processes=20)
        return group.kill(), group.close()

    def borne(number: int) -> bool:
        try:
            return used(number) == (True, True)
        except FileNotFoundError:  # another thread closed it meanwhile
            return True

    with ThreadPoolExecutor(8) as threads:
        assert list(threads.map(used, range(4), timeout=PATIENCE)) == [(True, True)] * 4, "each its own"
        assert all(threads.map(borne, range(64), timeout=PATIENCE)), "several the same"


def test_kill_and_close_give_up_on_a_frozen_process_in_time(found: Cgroups) -> None:
    freezer = Path("/sys/fs/cgroup/freezer") / f"toolgate-test-{os.getpid()}"
    if not freezer.parent.is_dir():
        pytest.skip("only the freezer of cgroup v1 keeps a process from SIGKILL")
    freezer.mkdir()
    group = found.group(NAME)
    process = started(group, "sleep", "60")
    assert eventually(lambda: group.processes() == [process.pid])
    (freezer / "cgroup.procs").write_text(str(process.pid))
    (freezer / "freezer.state").write_text("FROZEN")
    assert eventually(lambda: (freezer / "freezer.state").read_text() == "FROZEN\n")
    try:
        before = time.monotonic()
        assert (group.kill(0.2), group.close(0.2)) == (False, False)
        assert time.monotonic() - before < PATIENCE / 4
        births = [each.parent / "pids.max" for each in group.procs_files if (each.parent / "pids.max").exists()]
        assert [each.read_text() for each in births] == ["0\n"], "nothing is born in it any more"
    finally:
        (freezer / "freezer.state").write_text("THAWED")
    assert end(process) == -signal.SIGKILL
    assert group.close()
    freezer.rmdir()


@pytest.mark.parametrize(
    "name", ["", "..", "../../../x", "0123", "0123456789abcdeF", "0123456789abcde/", "0" * 129, "01234567\n"]
)
def test_a_name_that_is_no_digest_is_refused(found: Cgroups, name: str) -> None:
    with pytest.raises(ValueError, match="is not a hex digest"):
        found.group(name)


def test_what_a_killed_server_left_is_swept_and_what_a_living_one_has_is_not() -> None:
    server = subprocess.Popen([sys.executable, "-c", SERVER, NAME], text=True, stdout=subprocess.PIPE)
    said = sorted((line(server), line(server)), key=len)
    command, name = int(said[0]), said[1]
    assert eventually(
        lambda: (
            command in {int(pid) for each in houses(name) for pid in (each / NAME / "cgroup.procs").read_text().split()}
        )
    )
    found = had(cgroups.find())
    assert name not in found.sweep()
    assert alive(command)
    server.kill()
    server.wait(PATIENCE)
    assert alive(command), "else there is nothing to sweep"
    assert found.sweep().get(name, "") == "", "another server may have been quicker"
    assert eventually(lambda: not alive(command) and not houses(name))
    server.communicate(timeout=PATIENCE)
    assert found.close()


def test_a_server_that_closes_leaves_nothing() -> None:
    found = had(cgroups.find())
    group = found.group(NAME, processes=20)
    process = started(group, "sleep", "60")
    assert eventually(lambda: group.processes() == [process.pid])
    name = group.procs_files[0].parent.parent.name
    assert found.close()
    assert end(process) == -signal.SIGKILL
    assert houses(name) == []


FIND = (
    "from toolgate.tools.workspace.sandbox.cgroups import find; f = find(); print(f); isinstance(f, str) or f.close()"
)


def with_read_only(*mounts: str) -> str:
    """Return what a server finds with read-only mounts, as in most containers."""
    remount = 'for each; do mount -o remount,bind,ro "$each" || exit 91; done'
    script = f'{remount}; exec {sys.executable} -c "{FIND}"'
    command = ["unshare", "--mount", "--propagation", "private", "bash", "-c", script, "bash", *mounts]
    return subprocess.run(command, text=True, capture_output=True, timeout=PATIENCE, check=True).stdout.strip()


def test_a_controller_that_cannot_be_written_is_lacking_with_its_reason(found: Cgroups) -> None:
    mounts = [each.split()[4] for each in Path("/proc/self/mountinfo").read_text().splitlines() if " - cgroup" in each]
    if len(mounts) > 1:
        memory = next(each for each in mounts if "memory" in each)
        told = with_read_only(memory)
        assert told.startswith("cgroup v1 (pids, cpu), without memory: /sys/fs/cgroup/memory/"), told
        assert told.endswith(": Read-only file system"), told
    told = with_read_only(*mounts)
    assert told.count("Read-only file system") >= 1 and "cgroup v" not in told, told

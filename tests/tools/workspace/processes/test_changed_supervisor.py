"""A command that changes the limits, priority or processors of what starts the next ones: those start as ever."""

import os
from collections.abc import Iterator

import pytest

from tests.clients.raw_client import eventually
from tests.escape.test_planning import Planner, folder, planner

PROBE = (
    "python3 -I -c 'import os, resource as r; print([r.getrlimit(n) for n in range(16)], "
    "os.getpriority(0, 0), os.sched_getaffinity(0), os.sched_getscheduler(0))'"
)
WAITING = "W=$(cat /proc/$Z/task/$Z/children | tr ' ' '\\n' | grep -v '^'$PPID'$' | tail -1); "
ZYGOTE = "Z=$(awk '{print $4}' /proc/$PPID/stat); "
LOWER = (
    "prlimit --pid {0} --nproc=1:1",
    "prlimit --pid {0} --nofile=30:30",
    "prlimit --pid {0} --fsize=0:0",
    "prlimit --pid {0} --cpu=1:1",
    "renice -n 19 {0}",
    "taskset -p 1 {0}",
    "chrt -b -p 0 {0}",
)
LOWER_NEW = """exec python3 -I - <<'END'
import os, resource, time
until = time.monotonic() + 20
supervisor = os.getppid()
zygote = int(open(f"/proc/{supervisor}/stat").read().rpartition(")")[2].split()[1])
waiting = lambda: set(map(int, open(f"/proc/{zygote}/task/{zygote}/children").read().split())) - {supervisor}
try:
    while not (before := waiting()):
        assert time.monotonic() < until, f"{zygote} keeps none waiting beside {supervisor}"
        time.sleep(0.01)
    for each in before:
        os.kill(each, 9)
    while not (new := waiting() - before):
        assert time.monotonic() < until, f"{zygote} forks none in place of {before} beside {supervisor}: {waiting()}"
except FileNotFoundError:
    print("another zygote", end="")
else:
    resource.prlimit(new.pop(), resource.RLIMIT_NOFILE, (30, 30))
END
"""
REPLACED = "another zygote"
OWN = {  # what a command may do to itself and its children
    "its shell": "prlimit --pid $$ --nofile=64:64 && ulimit -n",
    "a child": "sleep 9 & prlimit --pid $! --nofile=64:64 && awk '/open files/ {print $4}' /proc/$!/limits; kill $!",
    "a command": "prlimit --nofile=64:64 bash -c 'ulimit -n'",
    "nice": "nice -n 3 true && timeout 5 echo 64",
}
pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root can be several users")


@pytest.fixture(scope="module", params=["bwrap", "uid", pytest.param("none", marks=pytest.mark.soak)])
def person(request: pytest.FixtureRequest) -> Iterator[Planner]:
    """A person of a server at each level."""
    with folder() as made, planner(made, request.param, None) as mine:
        yield mine


@pytest.mark.pairs
@pytest.mark.parametrize("find", ["T=$PPID; ", ZYGOTE + "T=$Z; ", ZYGOTE + WAITING + "T=${W:-$PPID}; "])
def test_the_next_command_has_the_limits_that_the_one_before_had(person: Planner, find: str) -> None:
    before = person.bash(PROBE)
    assert before.startswith("[(")
    for lower in LOWER:
        person.bash(find + lower.format("$T"))
        assert [person.bash(PROBE) for _ in range(2)] == [before] * 2, lower


def test_a_supervisor_that_was_changed_as_it_was_forked_starts_no_command(person: Planner) -> None:
    person.bash("sleep 0.1")  # a zygote that another test gave the least priority ends at the next command
    before = person.bash(PROBE)
    for _ in range(3):
        assert eventually(lambda: has_lowered(person))
        assert person.bash(PROBE) == before


def has_lowered(person: Planner) -> bool:
    """Lower the limits of a supervisor as it is forked. Return whether that came about: the one that was killed for it
    may just have got the command by which the server measures a workspace, and then another zygote starts that."""
    said = person.bash(LOWER_NEW)
    assert said in ("(no output)", REPLACED), said
    return said != REPLACED


def test_commands_that_take_long_have_the_limits_that_those_before_a_change_had(person: Planner) -> None:
    before = person.bash(PROBE)
    person.bash(ZYGOTE + "prlimit --pid $Z --nofile=30:30")
    assert [person.bash(f"{PROBE}; sleep 0.7") for _ in range(2)] == [before] * 2


def test_a_command_changes_the_limits_of_its_own_children(person: Planner) -> None:
    said = {own: person.bash(command).splitlines()[-1] for own, command in OWN.items()}
    assert said == dict.fromkeys(OWN, "64")

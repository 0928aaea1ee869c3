"""Every limit, reached through the real server by one principal at each level: the principal is told which, the other
one is not affected, and both go on working."""

import concurrent.futures
import contextlib
import os
import re
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.clients.raw_client import COMMAND, PATIENCE, eventually
from tests.clients.raw_http_client import site
from tests.server.auth.minted_tokens import Signed, asked
from tests.server.features.nodes.nodes import running_node
from tests.servers.reserved_users import kept_users
from toolgate.tools.workspace.limits import ROWS

MIB = 2**20
LIMITS = {
    "cpu": "1",
    "memory": "128M",
    "processes": "40",
    "files": "64",
    "file-size": "4M",
    "workspace": "8M",
    "entries": "200",
    "tmp": "2M",
    "commands": "4",
    "background": "2",
    "age": "3",
}
CALLS = {"calls": "0", "calls:tools:shell": "0"}
NO_CGROUPS = 'umount -l /sys/fs/cgroup/* /sys/fs/cgroup 2>/dev/null; exec "$@"'
THREADS = (
    "python3 -c 'import threading, time; threading.stack_size(1 << 16)\n"
    "for _ in range({0}): threading.Thread(target=time.sleep, args=(600,), daemon=True).start()\n"
    "print({0})'"
)
GROUPED, UID, ALONE = "bwrap", "uid", "bwrap, without cgroups"
LEVELS = (GROUPED, UID, ALONE)
ADA, EVE = "ada", "eve"

pytestmark = [
    pytest.mark.skipif(os.geteuid() != 0, reason="only root has all levels"),
    pytest.mark.programs("bwrap"),
]


@dataclass
class Said:
    text: str
    structured: Any
    is_error: bool


class TwoPrincipals:
    """A server with two principals."""

    def __init__(self, signed: Signed, level: str) -> None:
        self.level = level
        self._signed = signed
        self._tokens = {who: signed.token(who) for who in (ADA, EVE)}

    @property
    def log(self) -> str:
        return self._signed.site.log()

    def call(self, name: str, *, who: str = EVE, **arguments: Any) -> Said:
        response, body, answer = asked(
            self._signed, self._tokens[who], "tools/call", {"name": name, "arguments": arguments}
        )
        assert response.status == 200, body
        result = answer["result"]
        (text, *_) = result["content"]
        return Said(text["text"], result.get("structuredContent"), result["isError"])

    def bash(self, command: str, who: str = EVE, **how: Any) -> Said:
        return self.call("Bash", command=command, who=who, **how)

    def ended(self, command: str) -> str:
        """Return how a background task of that command ended."""
        task = self.call("BackgroundBash", command=command).structured["task_id"]
        assert eventually(lambda: "is running" not in self.call("ReadBgOutput", task_id=task).text)
        return self.call("ReadBgOutput", task_id=task).text

    def clear(self) -> None:
        """End all background tasks, and remove what a failed test left in the workspace."""
        for each in self.call("ListBgTasks").structured["tasks"]:
            if each["status"] == "running":
                self.call("KillBgTask", task_id=each["task_id"])
        self.bash("shopt -s dotglob; rm -rf -- *")

    def works(self, who: str) -> bool:
        """Return whether commands run and files can be written, in each folder of the principal."""
        said = self.bash("echo one > mine && cat mine && rm mine && (sleep 0; echo two) | cat", who)
        return (said.text, said.is_error) == ("one\ntwo\n", False)


@contextlib.contextmanager
def street(level: str, *, at_node: bool = False) -> Iterator[TwoPrincipals]:
    """Yield a server with its own range of users: other servers on this machine end theirs. `at_node`: commands run at
    a node, which has the limits."""
    calls, words = (
        [word for name, value in limits.items() for word in ("--limit", f"{name}={value}")]
        for limits in (CALLS, LIMITS)
    )
    users = kept_users(10)
    words += ["--sandbox", level.partition(",")[0], "--sandbox-uids", f"{users[0]}-{users[-1]}"]
    command: Sequence[str] = (COMMAND,)
    if level == ALONE:
        command = ("unshare", "--mount", "sh", "-c", NO_CGROUPS, "sh", COMMAND)
    folder = Path(tempfile.mkdtemp(prefix="toolgate-limits-"))
    folder.chmod(0o711)  # other users have to pass
    try:
        with contextlib.ExitStack() as stack:
            if at_node:
                words = ["--node", str(stack.enter_context(running_node(folder, *words)).address)]
            options = ("--auth", "oauth", *calls, *words)
            listening = stack.enter_context(site(folder, *options, workspace=False, command=command))
            yield TwoPrincipals(Signed(listening), level)
    finally:
        shutil.rmtree(folder)


SOAKED = [  # tests/escape has limits at each level
    *(pytest.param((level, False), id=level, marks=pytest.mark.soak) for level in LEVELS[1:]),
    *(pytest.param((level, True), id=f"{level}, at a node", marks=pytest.mark.soak) for level in (GROUPED, UID)),
]


@pytest.fixture(scope="module", params=[pytest.param((GROUPED, False), id=GROUPED), *SOAKED])
def served(request: pytest.FixtureRequest) -> Iterator[TwoPrincipals]:
    level, at_node = request.param
    with street(level, at_node=at_node) as opened:
        yield opened


@pytest.fixture
def here(served: TwoPrincipals) -> Iterator[TwoPrincipals]:
    """Yield the server; afterwards both principals work as before."""
    yield served
    served.clear()
    assert served.works(EVE) and served.works(ADA), served.log


@pytest.mark.soak  # 13 s, of processor time; tests/escape tries the same
def test_cpu_time_of_a_process(here: TwoPrincipals) -> None:
    said = here.bash("while :; do :; done")
    assert (said.is_error, said.text) == (
        True,
        "exit code: 152\nthe limit of 1 s of CPU time of a process was reached (--limit cpu)",
    )


@pytest.mark.soak
def test_a_process_that_ignores_the_signal_of_its_cpu_time_is_killed(here: TwoPrincipals) -> None:
    said = here.bash("trap '' XCPU; while :; do :; done")
    assert (said.is_error, said.text) == (
        True,
        "exit code: 137\nit was killed, perhaps at the limit of 1 s of CPU time of a process (--limit cpu)",
    )


def test_memory(here: TwoPrincipals) -> None:
    said = here.bash("exec python3 -c 'x = bytearray(256 << 20)'")
    assert said.is_error
    if here.level == ALONE:
        assert said.text.endswith(
            "the limit of 134,217,728 bytes of memory of a process may have been reached (--limit memory)"
        )
    else:
        assert said.text.endswith(
            "the limit of 134,217,728 bytes of memory was reached, and a process killed (--limit memory)"
        )


def test_memory_of_a_background_task(here: TwoPrincipals) -> None:
    said = here.ended("exec python3 -c 'x = bytearray(256 << 20)'")
    assert "the limit of 134,217,728 bytes of memory" in said


def test_processes_and_threads_are_limited_per_principal(here: TwoPrincipals) -> None:
    said = here.bash(f"exec {THREADS.format(60)}")
    assert said.is_error and "the limit of 40 processes" in said.text
    here.call("BackgroundBash", command=f"{THREADS.format(30)}; sleep 600")
    assert here.bash(THREADS.format(30), ADA).text == "30\n"


def test_open_files_of_a_process(here: TwoPrincipals) -> None:
    said = here.bash("exec python3 -c 'x = [open(\"/dev/null\") for _ in range(100)]'")
    assert said.is_error and said.text.endswith(
        "the limit of 64 open files of a process may have been reached (--limit files)"
    )


def test_the_size_of_a_file(here: TwoPrincipals) -> None:
    said = here.bash("exec head -c 6M /dev/zero > big")
    assert said.is_error
    assert said.text == "exit code: 153\nthe limit of 4,194,304 bytes of a file was reached (--limit file-size)"
    assert here.bash("stat -c %s big; rm big").text == "4194304\n"


def test_a_person_at_the_limit_does_not_limit_the_next_without_a_sandbox() -> None:
    with street("none") as served:
        served.bash("for i in {1..4}; do head -c 3M /dev/zero > big$i; done; exec sleep 60", ADA)
        for _ in range(5):  # a quick command's supervisor waits for the next command
            assert served.bash("exec echo more > more", ADA).is_error
            assert served.bash("cat big1 | wc -c", ADA).text == f"{3 * MIB}\n"
            assert served.works(EVE)
        assert not served.bash("rm -f big* more", ADA).is_error
        assert served.works(ADA)


def test_a_full_workspace_can_be_read_and_cleared_and_is_then_written_to(here: TwoPrincipals) -> None:
    said = here.bash("echo here > note; for i in {1..4}; do head -c 3M /dev/zero > big$i; done; exec sleep 60")
    assert said.is_error and f"over its limit of {8 * MIB:,}" in said.text
    said = here.bash("exec echo more > more")
    assert said.is_error and f"over its limit of {8 * MIB:,}" in said.text
    assert here.bash("cat note").text == "here\n"
    assert not here.bash("rm -f big* more note").is_error
    assert here.bash("echo more > more && cat more && rm more").text == "more\n"


def test_a_workspace_of_too_many_files_can_be_cleared(here: TwoPrincipals) -> None:
    said = here.bash("mkdir d; for i in {1..300}; do : > d/$i; done; exec sleep 60")
    assert said.is_error and said.text.endswith("files and folders, over its limit of 200 (--limit entries)")
    assert not here.bash("rm -r d").is_error


def test_the_private_tmp(here: TwoPrincipals) -> None:
    if here.level == UID:
        return  # there it is the machine's
    said = here.bash("head -c 3M /dev/zero > /tmp/x; code=$?; rm /tmp/x; exit $code")
    assert said.is_error and said.text.endswith(
        "the limit of 2,097,152 bytes of /tmp may have been reached (--limit tmp)"
    )


def test_output_past_its_most_is_not_kept_and_the_command_goes_on(here: TwoPrincipals) -> None:
    said = here.bash("head -c 65M /dev/zero | tr '\\0' x; echo; echo the cause; echo end > end", timeout=60_000)
    assert "x\nthe cause\n[its first 67,108,864 bytes and its end are in" in said.text
    assert (said.is_error, "the middle is left out" in said.text) == (False, True)
    assert here.bash("cat end; rm end").text == "end\n"


def test_commands_at_once(here: TwoPrincipals) -> None:
    root = Path(here.bash("pwd").text.strip())
    waiting = "touch up-$BASHPID; until [ -e go ]; do sleep 0.05; done"
    with concurrent.futures.ThreadPoolExecutor() as pool:
        held = [pool.submit(here.bash, waiting, timeout=60_000) for _ in range(4)]
        try:
            assert eventually(lambda: len(list(root.glob("up-*"))) == 4)
            said = here.bash("true")
            most = (
                "4 commands are running, the most at once (--limit commands): wait for one, or end one with KillBgTask"
            )
            assert (said.is_error, said.text) == (True, most)
            assert here.works(ADA)
        finally:
            (root / "go").touch()
        assert not any(each.result(PATIENCE).is_error for each in held)
    here.bash("rm go up-*")


def test_background_tasks_at_once_those_left_running_too(here: TwoPrincipals) -> None:
    for _ in range(2):
        assert not here.call("BackgroundBash", command="sleep 600").is_error
    said = here.call("BackgroundBash", command="sleep 600")
    assert (said.is_error, said.text) == (
        True,
        "2 background tasks are running, the most at once (--limit background): end one with KillBgTask",
    )
    said = here.bash("sleep 600 & echo up")
    assert said.is_error
    assert (
        "up\nwhat it left running was ended: 2 background tasks are running, the most at once (--limit background)"
        in said.text
    )


def test_the_age_of_a_background_task_of_one_left_running_too(here: TwoPrincipals) -> None:
    said = here.bash("sleep 600 & echo up")
    (left,) = re.findall(r"now background task (\d+):", said.text)
    assert here.ended("sleep 600").endswith(": it was older than 3 s, the most for a background task]")
    most = "the most for a background task"
    assert eventually(lambda: most in here.call("ReadBgOutput", task_id=int(left)).text)


def _count(here: TwoPrincipals) -> int:
    return int(here.bash("find . | wc -l").text.splitlines()[0])


def test_short_commands_add_no_file_to_a_workspace_of_too_many(here: TwoPrincipals) -> None:
    said = here.bash("mkdir d; for i in {1..300}; do : > d/$i; done; exec sleep 60")
    assert said.is_error and "over its limit of 200" in said.text
    count = _count(here)  # a busy machine ends the command before it has made them all
    for n in range(4):
        said = here.bash(f"for i in {{1..100}}; do : > more{n}-$i; ln -s x link{n}-$i; mkdir d{n}-$i; done")
        assert said.is_error and "over its limit of 200" in said.text
    assert _count(here) == count
    said = here.bash("rm -r d && echo cleared 2>/dev/null")
    assert (said.text, said.is_error) == ("cleared\n", False)


def test_no_hole_is_filled_in_a_full_workspace(here: TwoPrincipals) -> None:
    here.bash("truncate -s 4M sparse; for i in {1..4}; do head -c 3M /dev/zero > big$i; done; exec sleep 60")
    said = here.bash(
        'python3 -c \'import mmap; f = open("sparse", "r+b"); m = mmap.mmap(f.fileno(), 0)\n'
        'for at in range(0, 2**22, 4096): m[at:at + 4] = b"full"\''
    )
    assert said.is_error and f"over its limit of {8 * MIB:,}" in said.text
    assert here.bash("du -k sparse | cut -f1").text == "0\n"
    here.bash("rm -f big* sparse")


def test_room_that_removed_files_take_counts(here: TwoPrincipals) -> None:
    said = here.bash("for i in {1..4}; do exec {fd}> gone; rm gone; head -c 3M /dev/zero >&$fd; done; exec sleep 60")
    assert said.is_error and f"over its limit of {8 * MIB:,}" in said.text


def test_programs_do_without_room_reserved_ahead(here: TwoPrincipals) -> None:
    said = here.bash(
        "set -e; python3 -c 'import os; os.posix_fallocate(os.open(\"ahead\", os.O_RDWR | os.O_CREAT), 0, 2**20)'\n"
        "stat -c %s ahead; ! fallocate -l 1M by-name 2>&1; fallocate -p -o 0 -l 64K ahead\n"
        "dd if=/dev/zero of=copy bs=64K count=4 status=none; tar cf tree.tar copy; cp --sparse=always copy other\n"
        "git init -q repo; git -C repo -c user.name=x -c user.email=x@x commit -q --allow-empty -m x\n"
        'python3 -c \'import sqlite3; c = sqlite3.connect("base"); c.execute("create table t (x)"); c.commit()\'\n'
        "rm -rf ahead by-name copy tree.tar other repo base"
    )
    assert (said.text, said.is_error) == (
        "1048576\nfallocate: fallocate failed: Operation not supported\n",
        False,
    )


def test_a_detached_process_of_a_background_task_has_its_age(here: TwoPrincipals) -> None:
    """It has left its session and its parent."""
    root = Path(here.bash("pwd").text.strip())
    task = here.call("BackgroundBash", command="setsid -f sh -c 'echo $$ > pid; exec sleep 613' & sleep 600")
    assert eventually(lambda: (root / "pid").exists() and len((root / "pid").read_text()) > 1)
    assert not task.is_error
    assert eventually(lambda: _runs("613")), "it is written down before it begins"
    assert eventually(lambda: not _runs("613"))
    here.bash("rm pid")


def _runs(argument: str) -> bool:
    """Return whether a `sleep` of this length runs."""
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            if path.read_bytes() == f"sleep\0{argument}\0".encode():
                return True
    return False


def test_shared_memory(here: TwoPrincipals) -> None:
    script = (
        "import mmap, time; x = mmap.mmap(-1, 256 << 20); [x.write(bytes(1 << 20)) for _ in range(256)]; time.sleep(60)"
    )
    said = here.bash(f"exec python3 -c '{script}'")
    assert said.is_error
    if here.level == ALONE:
        assert "bytes of shared memory, over the limit of 134,217,728" in said.text
    else:
        assert said.text.endswith(
            "the limit of 134,217,728 bytes of memory was reached, and a process killed (--limit memory)"
        )


def test_shared_memory_of_a_user_ends_with_its_sandbox() -> None:
    def segments() -> set[str]:
        return {line.split()[1] for line in Path("/proc/sysvipc/shm").read_text().splitlines()[1:]}

    script = "import ctypes; print(ctypes.CDLL(None).shmget(0, 4096, 0o1600))"
    with street(UID) as here:
        made = here.bash(f"exec python3 -c '{script}'").text.strip()
        assert made in segments()
    assert made not in segments()


def test_each_kind_of_limit_is_tried_here() -> None:
    elsewhere = {"idle"}  # tests/server/workspaces/test_idle_workspaces.py
    assert {name.partition(":")[0] for name in LIMITS | CALLS} | elsewhere == set(ROWS)

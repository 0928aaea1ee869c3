"""The sandbox against known escapes: each test is one that once worked."""

import asyncio
import contextlib
import errno
import os
import shlex
import shutil
import socket
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import pytest
from msgspec.structs import replace

from tests.server.workspaces.test_folders import nested
from tests.servers.forked_command import COMMAND
from tests.servers.reserved_users import kept_users
from tests.tools.shell_commands import BOUND, ENVIRONMENT, ran
from toolgate.tools.api.outbound.address_policy import AddressPolicy
from toolgate.tools.workspace.files import rmtree
from toolgate.tools.workspace.files.safe_walk import walk_folders
from toolgate.tools.workspace.limits import Limits
from toolgate.tools.workspace.local_workspace import LocalWorkspace
from toolgate.tools.workspace.processes.idle_sandboxes import IdleSandboxes
from toolgate.tools.workspace.processes.process import MAX_SAID, Process
from toolgate.tools.workspace.processes.start_queue import StartQueue
from toolgate.tools.workspace.processes.zygote import CommandRunner
from toolgate.tools.workspace.sandbox import levels, users
from toolgate.tools.workspace.sandbox import process as cell
from toolgate.tools.workspace.sandbox.egress.sandbox_proxy import SandboxProxy
from toolgate.tools.workspace.sandbox.environment import SandboxedEnvironment
from toolgate.tools.workspace.sandbox.levels import Sandbox, SandboxOptions

USERS = kept_users(20)  # some tests end a user's processes
UIDS, IDLE = USERS[:10], USERS[10:]
pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root can be several users")
needs_bwrap = pytest.mark.programs("bwrap")

# Stops all other processes of its user as fast as it can, so that no helper of that user gets to work.
STOPPER = """
print("ready", flush=True)
while True:
    try:
        os.kill(-1, signal.SIGSTOP)
    except OSError:
        pass
"""


@pytest.fixture
def folder(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Yield a folder that every user can enter: pytest's are root's."""
    made = Path(os.path.realpath("/tmp")) / f"toolgate-test-{os.urandom(8).hex()}"
    made.mkdir(mode=0o711)
    monkeypatch.setattr(users, "CLAIMS", made / "claims")  # servers in other tests use the same range
    yield made
    shutil.rmtree(made)


@pytest.fixture
def as_user() -> Iterator[Callable[[int, str], "subprocess.Popen[bytes]"]]:
    """Yield a function that starts a Python program as a user, and waits for its first output."""
    with contextlib.ExitStack() as stack:

        def begin(uid: int, program: str) -> "subprocess.Popen[bytes]":
            process = stack.enter_context(
                subprocess.Popen(
                    [cell.PYTHON, "-I", "-S", "-c", _becoming(uid) + program],
                    stdout=subprocess.PIPE,
                    cwd="/",
                )
            )
            stack.callback(process.kill)
            assert process.stdout is not None
            assert process.stdout.readline()
            return process

        yield begin


def _becoming(uid: int) -> str:
    """Change user in the program itself: only root may be able to read the interpreter."""
    return f"import os, signal, time; os.setgroups([]); os.setresgid(*[{uid}] * 3); os.setresuid(*[{uid}] * 3)\n"


def sandbox(level: str, **how: object) -> Sandbox:
    network = "public" if level == "bwrap" else "none"
    wanted = SandboxOptions(level, network, False, Limits(), os.environ["PATH"], uids=UIDS)  # type: ignore[arg-type]
    return levels.choose_sandbox(replace(wanted, **how))  # type: ignore[arg-type]


@contextlib.asynccontextmanager
async def workspace(folder: Path, kept: Sandbox, *, alone: bool = True) -> AsyncIterator[LocalWorkspace]:
    root = folder / "workspaces" / "ada"
    root.mkdir(parents=True, exist_ok=True)
    outside = CommandRunner()
    quarters = SandboxedEnvironment(
        kept,
        root,
        folder / "spools" / "ada",
        is_exclusive=alone,
        server_runner=outside,
        make_proxy=_open_proxy,
        make_group=lambda limits: None,
        close_group=lambda group: None,
        memory=True,
        idle_sandboxes=IdleSandboxes(),
        starts=StartQueue(),
    )
    mine = LocalWorkspace(root, folder / "spools" / "ada", ENVIRONMENT, lambda _: None, command_environment=quarters)
    try:
        yield mine
    finally:
        await mine.close(0.2)
        await outside.close()


def _open_proxy(listener: socket.socket) -> SandboxProxy:
    proxy = SandboxProxy(listener, AddressPolicy.parse(()))
    proxy.open()
    return proxy


def test_a_command_that_stops_all_processes_of_its_user_is_still_killed(
    as_user: Callable[[int, str], "subprocess.Popen[bytes]"],
) -> None:
    for _ in range(5):  # it was a race
        stopper = as_user(UIDS[1], STOPPER)
        began = time.monotonic()
        cell.kill_user(UIDS[1], UIDS[-1])
        assert stopper.wait(BOUND) == -9
        assert time.monotonic() - began < cell.END_WITHIN


SURVIVOR = """
signal.signal(signal.SIGTERM, signal.SIG_IGN)
print("ready", flush=True)
while True:
    time.sleep(60)
"""


def test_processes_of_a_dead_server_are_ended_by_the_next_and_none_of_a_living_one(
    folder: Path, as_user: Callable[[int, str], "subprocess.Popen[bytes]"]
) -> None:
    def swept() -> list[str]:
        return users.end_deserted(
            folder / "workspaces", folder / "spools", UIDS, lambda uid: cell.kill_user(uid, UIDS[-1])
        )

    async def body() -> None:
        kept = sandbox("uid")
        async with workspace(folder, kept) as mine:
            uid = int(await ran(mine, "id -u"))
            task = await mine.start("echo here; sleep 600")
            await mine.wait_output(task, 0, BOUND)
            assert await asyncio.to_thread(swept) == []
            assert (await mine.run(task)).status == "running"
        for is_at_its_call in (False, True):
            survivor = as_user(uid, SURVIVOR)
            if is_at_its_call:
                async with workspace(folder, kept) as mine:
                    assert await ran(mine, "echo here") == b"here\n"
            else:
                assert await asyncio.to_thread(swept) == ["ada"]
            assert await asyncio.to_thread(survivor.wait, BOUND) == -9

    asyncio.run(body())


@needs_bwrap
@pytest.mark.parametrize("level", ["bwrap", "uid"])
def test_folders_that_are_removed_under_a_server_are_made_again(folder: Path, level: str) -> None:
    """Otherwise its commands could not record their directory, and after an idle while none could start."""

    async def landed(mine: LocalWorkspace, name: str) -> str | None:
        task = await mine.start(f"mkdir -p {name}; cd {name}")
        assert await mine.wait(task, BOUND)
        found = await mine.read_cwd(task)
        return None if found is None else found.name

    async def body() -> None:
        spool = folder / "spools" / "ada"
        unmeasured = Limits(workspace=0, entries=0)
        async with workspace(folder, sandbox(level, limits=unmeasured)) as mine:
            assert await landed(mine, "one") == "one"
            for removed, idle in ((spool / "places", True), (spool, False)):
                busy = None if idle else await mine.start("sleep 600", background=True)
                shutil.rmtree(removed)
                assert await landed(mine, "two") == ("two" if idle or level == "uid" else None)
                if busy is not None:
                    await mine.kill(busy, 0)
                assert await landed(mine, "three") == "three"
            assert (spool / "places").stat().st_uid == mine._environment.uid

    asyncio.run(body())


@pytest.mark.parametrize("level", ["bwrap", "uid"])
def test_a_folder_that_another_part_made_again_is_made_again(folder: Path, level: str) -> None:
    """It may have the inode number of the lost one."""

    async def body() -> None:
        places = folder / "spools" / "ada" / "places"
        unmeasured = Limits(workspace=0, entries=0)
        async with workspace(folder, sandbox(level, limits=unmeasured)) as mine:
            for name in ("one", "two", "three"):
                task = await mine.start(f"mkdir -p {name}; cd {name}")
                assert await mine.wait(task, BOUND)
                landed = await mine.read_cwd(task)
                assert landed is not None and landed.name == name
                shutil.rmtree(places)
                places.mkdir(mode=0o700)

    asyncio.run(body())


@needs_bwrap
@pytest.mark.parametrize("level", ["bwrap", "uid"])
def test_commands_can_open_their_output_again(folder: Path, level: str) -> None:
    """Scripts write to /dev/stderr, and the pipe is made by root."""

    async def body() -> None:
        async with workspace(folder, sandbox(level)) as mine:
            assert (
                await ran(mine, "echo out >/dev/stdout; echo err >/dev/stderr; (exec 3>/proc/self/fd/1)")
                == b"out\nerr\n"
            )

    asyncio.run(body())


def test_a_user_with_running_processes_is_not_assigned(
    folder: Path, as_user: Callable[[int, str], "subprocess.Popen[bytes]"]
) -> None:
    """Its workspace is gone, but a new owner would share files and signals with the process."""
    survivor = as_user(UIDS[1], SURVIVOR)
    root = folder / "workspaces" / "ada"
    root.mkdir(parents=True)
    assert users.assign_user(root, UIDS[:4], users.FreeUsers()) == UIDS[2]
    assert survivor.poll() is None


def test_a_process_that_starts_after_the_look_keeps_its_user(
    folder: Path, as_user: Callable[[int, str], "subprocess.Popen[bytes]"]
) -> None:
    free, roots = users.FreeUsers(), [folder / "workspaces" / name for name in ("ada", "bob")]
    for root in roots:
        root.mkdir(parents=True)
    first = users.assign_user(roots[0], UIDS[:6], free)
    following = UIDS[UIDS.index(first) % 4 + 1]
    as_user(following, SURVIVOR)
    assert users.assign_user(roots[1], UIDS[:6], free) not in (first, following)


def test_two_servers_on_one_state_assign_each_user_once(folder: Path) -> None:
    servers = [users.FreeUsers(), users.FreeUsers()]
    given: list[int] = []
    for number in range(len(IDLE) - 2):
        root = folder / f"person{number}"
        root.mkdir()
        given.append(users.assign_user(root, IDLE, servers[number // 2 % 2]))
    assert sorted(given) == list(IDLE[1:-1])


def test_many_new_people_cost_one_look_at_all_processes(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    looks: list[str] = []
    look = users.list_active_users
    monkeypatch.setattr(users, "list_active_users", lambda: looks.append("look") or look())
    free = users.FreeUsers()
    for number in range(6):
        root = folder / f"person{number}"
        root.mkdir()
        users.assign_user(root, IDLE, free)
    assert looks == ["look"]


def test_a_used_user_is_assigned_again_last(folder: Path) -> None:
    """Its files in /tmp or shared memory would be the next one's."""
    given, free = list[int](), users.FreeUsers()
    for _ in range(len(IDLE) - 2):
        root = folder / "ada"
        root.mkdir()
        given.append(users.assign_user(root, IDLE, free))
        root.rmdir()
    assert sorted(given) == list(IDLE[1:-1])


def test_a_workspace_changes_owner_with_its_files_but_not_linked_ones(folder: Path) -> None:
    root, others = folder / "workspaces" / "ada", folder / "shadow"
    (root / "deep").mkdir(parents=True)
    others.write_text("root's")
    (root / "deep" / "file").write_text("mine")
    (root / "deep" / "link").symlink_to(others)
    for path in (root, root / "deep", root / "deep" / "file", root / "deep" / "link"):
        os.chown(path, 1, 1, follow_symlinks=False)
    (root / "deep" / "hard").hardlink_to(others)
    uid = users.assign_user(root, IDLE, users.FreeUsers())
    assert uid in IDLE
    owners = {path.name: path.lstat().st_uid for path in (root, *root.rglob("*"))}
    assert owners == {"ada": uid, "deep": uid, "file": uid, "link": uid, "hard": 0}
    assert others.stat().st_uid == 0


def test_servers_of_different_state_folders_begin_with_different_users(folder: Path) -> None:
    given: set[int] = set()
    for name in ("one", "two", "three", "four"):
        root = folder / name / "ada"
        root.mkdir(parents=True)
        given.add(users.assign_user(root, range(40_000, 50_000), users.FreeUsers()))
    assert len(given) > 1


def test_servers_of_two_state_folders_never_assign_the_same_user(folder: Path) -> None:
    roots = [folder / state / name for state in ("one", "two") for name in ("ada", "bob")]
    for root in roots:
        root.mkdir(parents=True)
    given = [users.assign_user(root, UIDS[:6], users.FreeUsers()) for root in roots]
    assert len(set(given)) == 4
    assert [users.assign_user(root, UIDS[:6], users.FreeUsers()) for root in roots] == given
    last = folder / "three" / "ada"
    last.mkdir(parents=True)
    with pytest.raises(users.NoFreeUserError):
        users.assign_user(last, UIDS[:6], users.FreeUsers())
    roots[0].rmdir()
    assert users.assign_user(last, UIDS[:6], users.FreeUsers()) == given[0]


def test_a_copied_workspace_with_a_foreign_owner_gets_its_own_user(folder: Path) -> None:
    """The state folder was copied from another machine."""
    here, copy = folder / "one" / "ada", folder / "two" / "ada"
    here.mkdir(parents=True)
    uid = users.assign_user(here, IDLE, users.FreeUsers())
    copy.mkdir(parents=True)
    (copy / "file").write_text("mine")
    for path in (copy, copy / "file"):
        os.chown(path, uid, uid)
    own = users.assign_user(copy, IDLE, users.FreeUsers())
    assert own != uid and own in IDLE
    assert (copy / "file").stat().st_uid == copy.stat().st_uid == own
    assert users.assign_user(here, IDLE, users.FreeUsers()) == uid


def test_an_interrupted_change_of_owner_continues_with_the_same_user(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = folder / "workspaces" / "ada"
    root.mkdir(parents=True)
    for name in ("a", "b", "c"):
        (root / name).write_text(name)
    passed: list[str] = []

    def killed(name: str, here: int, owner: int, uid: int) -> None:
        if passed:
            raise KeyboardInterrupt
        passed.append(name)
        whole(name, here, owner, uid)

    with monkeypatch.context() as patched:
        whole = users._pass_on
        patched.setattr(users, "_pass_on", killed)
        with pytest.raises(KeyboardInterrupt):
            users.assign_user(root, IDLE, users.FreeUsers())
    other = folder / "workspaces" / "bob"
    other.mkdir()
    given = users.assign_user(other, IDLE, users.FreeUsers())
    uid = users.assign_user(root, IDLE, users.FreeUsers())
    assert uid == (root / passed[0]).stat().st_uid != given
    assert {path.stat().st_uid for path in (root, *root.iterdir())} == {uid}


def test_a_folder_of_claims_that_others_can_write_to_is_not_used(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(users, "CLAIMS", folder / "claims")
    (folder / "claims").mkdir()
    (folder / "claims").chmod(0o777)
    root = folder / "workspaces" / "ada"
    root.mkdir(parents=True)
    with pytest.raises(OSError, match="root alone"):
        users.assign_user(root, IDLE, users.FreeUsers())


def test_a_workspace_of_any_depth_changes_owner(folder: Path) -> None:
    root = folder / "workspaces" / "ada"
    root.mkdir(parents=True)
    nested(root, 1_200)  # more than Python nests
    uid = users.assign_user(root, IDLE, users.FreeUsers())
    assert {os.fstat(here).st_uid for here, _ in walk_folders(root)} == {uid}
    rmtree.remove_tree(root)


@needs_bwrap
def test_commands_as_the_servers_user_find_no_unfiltered_process(folder: Path) -> None:
    """bwrap's first process has the same user: a command that writes to its memory would escape the filter."""

    async def body() -> None:
        kept = replace(sandbox("bwrap"), uids=None)  # as for a server that is not root
        async with workspace(folder, kept) as mine:
            said = await ran(mine, "grep -h ^Seccomp: /proc/[0-9]*/status | sort | uniq -c")
            assert said.split()[1:] == [b"Seccomp:", b"2"], said
            assert int(said.split()[0]) > 3

    asyncio.run(body())


@needs_bwrap
def test_a_hidden_path_in_a_workspace_stays_hidden_when_its_parents_are_renamed(folder: Path) -> None:
    async def body() -> None:
        root = folder / "workspaces" / "ada"
        secret = root / "deep" / "down" / "state"
        secret.mkdir(parents=True)
        (secret / "key").write_text("geheim")
        kept = replace(sandbox("bwrap", hidden_paths=[secret]), uids=None)
        for _ in range(2):  # the second sandbox gets the first one's leftovers
            async with workspace(folder, kept) as mine:
                await ran(mine, "cd ~; mv deep/down deep/up; mv deep high; mkdir -p deep/down/state")
                assert b"geheim" not in await ran(mine, "cat ~/*/*/state/key ~/deep/down/state/key")
                assert await ran(mine, "echo kept > ~/deep/file; cat ~/deep/file") == b"kept\n"

    asyncio.run(body())


@needs_bwrap
def test_leftover_directory_records_are_removed_by_a_thread(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """There may be any number of files, and the event loop serves all callers."""
    removed: dict[str, int] = {}
    unlink = os.unlink

    def noted(path: str, *more: object, **how: object) -> None:
        removed[os.path.basename(path)] = threading.get_ident()
        unlink(path, *more, **how)  # type: ignore[arg-type]

    async def body() -> None:
        async with workspace(folder, sandbox("bwrap")) as mine:
            await ran(mine, f"touch {folder}/spools/ada/places/{{a,b}}")
            monkeypatch.setattr(os, "unlink", noted)
        assert {"a", "b"} <= removed.keys()
        assert threading.get_ident() not in (removed["a"], removed["b"])

    asyncio.run(body())


@pytest.mark.parametrize(
    "said",
    [
        *("exited 1 " + "9" * 4000, "exited -99999999999999999999 0", "exited 256 0", "exited 0 -1", "exited 1"),
        *("here x", "here 1\nstarted 0\nstarted 0", "nonsense", "x" * (MAX_SAID + 1), "exited 0 0\nexited 0 0"),
    ],
)
def test_a_message_that_no_supervisor_sends_ends_the_sandbox(said: str) -> None:
    """A command in it may write anything; no number in it is used."""

    async def body() -> None:
        control, theirs = socket.socketpair()
        output, write_end = os.pipe()
        for descriptor in (control.fileno(), output):
            os.set_blocking(descriptor, False)
        ended: list[bool] = []
        process = Process(control, output, lambda data: None, lambda: ended.append(True))
        with theirs:
            await asyncio.get_running_loop().sock_sendall(theirs, said.encode() + b"\n" * (len(said) < MAX_SAID))
            assert await asyncio.wait_for(process.gone, BOUND) is False
        os.close(write_end)
        assert ended == [True]
        assert process.ended.result() in (None, 0)

    asyncio.run(body())


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (["--sandbox", "bwrap", "--workspace", "/"], "/ is a system folder"),
        (["--sandbox", "bwrap", "--workspace", "/proc"], "/proc is a system folder"),
        (["--sandbox", "bwrap", "--workspace", "/proc/sys"], "/proc/sys is a system folder"),
        (["--sandbox", "uid", "--workspace", "/tmp"], "/tmp is a system folder"),
        (["--sandbox", "bwrap", "--workspace", "{0}", "--search-keys", "{0}/keys"], "readable once it is replaced"),
        (["--sandbox", "uid", "--workspace", "{0}", "--state", "{0}/deep/state"], "at level uid"),
    ],
)
@needs_bwrap
def test_a_workspace_that_no_sandbox_could_keep_is_refused(folder: Path, options: list[str], says: str) -> None:
    os.chown(folder, UIDS[1], UIDS[1])
    (folder / "keys").write_text("")
    words = ["--state", str(folder / "state"), *(word.format(folder) for word in options)]
    ended = subprocess.run([COMMAND, *words], stdin=subprocess.DEVNULL, capture_output=True, timeout=BOUND, cwd=folder)
    assert says in ended.stderr.decode()
    assert ended.returncode == 2


UNHEARD = """
import ctypes
libc = ctypes.CDLL(None, use_errno=True)
for number in (438, 440, 442, 443, 447, 457, 458, 467):
    libc.syscall(number, 0, 0, 0, 0, 0, 0)
    print(ctypes.get_errno(), end=" ")
"""


@needs_bwrap
def test_system_calls_unknown_to_libseccomp_are_refused(folder: Path) -> None:
    """Debian 12's does not know the calls since Linux 6.8, which its backported kernels have."""

    async def body() -> None:
        async with workspace(folder, sandbox("bwrap")) as mine:
            said = await ran(mine, f"{shlex.quote(cell.PYTHON)} -I -S -c {shlex.quote(UNHEARD)}")
            assert set(map(int, said.split())) == {errno.EPERM}

    asyncio.run(body())


@pytest.mark.skipif(os.getuid() != 0, reason="needs to change user")
@pytest.mark.parametrize("ids", [(64_001, 64_002), (64_002, 64_001)])
def test_the_real_and_the_effective_user_of_a_process_are_active(ids: tuple[int, int]) -> None:
    script = f"import os, sys; os.setresuid({ids[0]}, {ids[1]}, 0); print(flush=True); sys.stdin.read()"
    with subprocess.Popen([sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        assert set(ids) <= users.list_active_users()

"""Set up a principal's sandbox: its folders, its user, its proxy and its control group."""

import asyncio
import logging
import os
import socket
import subprocess
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from weakref import WeakSet

from msgspec.structs import replace

from toolgate.tools.workspace.commands.environment import ProgramPlace, resource_limits
from toolgate.tools.workspace.limits import Limits
from toolgate.tools.workspace.output.spool import CWD_FOLDER, remove_cwd_files
from toolgate.tools.workspace.processes import landlock
from toolgate.tools.workspace.processes.idle_sandboxes import IdleSandboxes
from toolgate.tools.workspace.processes.process import ReadOnly
from toolgate.tools.workspace.processes.start_queue import StartQueue
from toolgate.tools.workspace.processes.zygote import CommandRunner, SandboxHandle
from toolgate.tools.workspace.sandbox.cgroups import Group
from toolgate.tools.workspace.sandbox.egress.host_rules import HostRules
from toolgate.tools.workspace.sandbox.egress.sandbox_proxy import SandboxProxy
from toolgate.tools.workspace.sandbox.levels import Sandbox
from toolgate.tools.workspace.sandbox.process import SandboxProcess, isolates_programs, kill_user
from toolgate.tools.workspace.sandbox.program_paths import check_paths
from toolgate.tools.workspace.sandbox.read_only_filter import build_read_only
from toolgate.tools.workspace.sandbox.users import assign_user, runs_process

log = logging.getLogger(__name__)

PRIVATE = (Path("/tmp"), Path("/dev/shm"))  # noqa: S108  # of a sandbox that ends with its command


class SandboxedEnvironment:
    """The folders, the user and the processes of a principal's sandbox.

    `is_exclusive`: the folder is this principal's, and `root.parent` holds only such folders. `make_proxy` makes the
    proxy from a sandbox's listener. `make_group` makes its control group, if available, and `close_group` removes it
    (blocking; raise OSError). `memory`: no group bounds memory. `idle_sandboxes` and `starts`: those of the server.
    `on_loss` is called when the sandbox has ended with commands in it.
    """

    def __init__(
        self,
        sandbox: Sandbox,
        root: Path,
        spool: Path,
        *,
        is_exclusive: bool,
        server_runner: CommandRunner,
        make_proxy: Callable[[socket.socket], SandboxProxy],
        make_group: Callable[[Limits], Group | None],
        close_group: Callable[[Group], None],
        memory: bool,
        idle_sandboxes: IdleSandboxes,
        starts: StartQueue,
        on_loss: Callable[[], None] = lambda: None,
    ) -> None:
        self.level: str = sandbox.level
        self.limits = sandbox.limits
        self.uid: int | None = None
        self.resources: Mapping[int, int] = resource_limits(sandbox.limits, memory=memory)
        self._make_group = make_group
        self._close_group = close_group
        self.server_runner = server_runner
        self._sandbox = sandbox
        self._root = root
        self._spool = spool
        self._is_exclusive = is_exclusive
        self._make_proxy = make_proxy
        self._idle_sandboxes = idle_sandboxes
        self._starts = starts
        self._on_loss = on_loss
        self._proxy: SandboxProxy | None = None
        self._group: Group | None = None
        self._process: SandboxProcess | None = None
        self._cwd_folder = -1  # a descriptor of it: while that is open, no other folder gets its inode number
        self._is_stale = False  # the running sandbox has another one
        self._given: Mapping[str, str] | None = None
        self._variables: Mapping[str, str] | None = None
        self._runner: CommandRunner | None = None
        self._closing: set[asyncio.Future[None]] = set()
        self._read_only: ReadOnly | None = None  # find_read_only_obstacle sets it
        self._own_runners: WeakSet[CommandRunner] = WeakSet()  # of one command each
        self._program_runners: WeakSet[CommandRunner] = WeakSet()  # those of programs

    @property
    def runner(self) -> CommandRunner:
        """The runner of this sandbox's commands; the first command starts the sandbox. `prepare` comes before."""
        if self._runner is None:
            self._runner = self._make_runner(self, self._on_enter, self._on_exit, self._idle_sandboxes)
        return self._runner

    def _note_loss(self, count: int, reason: str) -> None:
        hits = "; ".join(["", *self.reached_limits()])
        commands = "1 command" if count == 1 else f"{count} commands"
        log.warning("the sandbox of %s ended, and %s with it, %s%s", self._spool.name, commands, reason, hits)
        self._on_loss()

    def prepare(self) -> None:
        """Give the folders to the user that commands run as. Blocking; raises OSError."""
        if self._process is not None:
            return
        self.uid = self._choose_uid()
        self._make_folders()
        self._group = self._make_group(self.limits)
        groups = [] if self._group is None else self._group.procs_files
        folders = (self._root, self._spool, self._spool / CWD_FOLDER)
        self._process = self._sandbox.make_process(*folders, self.uid, groups, is_exclusive=self._is_exclusive)

    def refresh(self) -> None:
        """Make lost folders again. A running sandbox keeps the old ones, so it ends as soon as it is idle; until then
        its commands record no directory."""
        if not self._has_cwd_folder():
            self._make_folders()
            self._is_stale = True
        if self._is_stale:
            self.runner.retire()

    def spawn(self, channel: socket.socket, report: socket.socket) -> "subprocess.Popen[bytes]":
        """Start a sandbox with the folders as they are now."""
        assert self._process is not None
        self._make_folders()
        self._is_stale = False
        return self._process.spawn(channel, report)

    @property
    def is_alone(self) -> bool:
        return self.level != "uid" or not any(runner.is_running for runner in self._program_runners)

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()

    def end_leftovers(self) -> None:
        """End processes that lost their sandbox with its server, but survived it. Blocking."""
        uids = self._sandbox.uids
        if self._is_exclusive and uids is not None and self.uid is not None and runs_process(self.uid):
            kill_user(self.uid, uids[-1])

    def variables(self, given: Mapping[str, str]) -> Mapping[str, str]:
        if self._given is not given or self._variables is None:  # the same for each command, and slow to build
            assert self._process is not None
            self._given, self._variables = given, self._process.variables(given)
        return self._variables

    def reached_limits(self) -> list[str]:
        if self._group is None:
            return []
        hits, limits = self._group.hits(), self.limits
        memory = f"the limit of {limits.memory:,} bytes of memory was reached, and a process killed (--limit memory)"
        processes = f"the limit of {limits.processes:,} processes was reached, and no more started (--limit processes)"
        return [*([memory] if hits.oom else []), *([processes] if hits.processes else [])]

    def find_read_only_obstacle(self) -> str | None:
        built = build_read_only(landlock.find_version(), needs_landlock=self._needs_landlock)
        if isinstance(built, str):
            return built
        self._read_only = built
        return None

    def prepare_read_only(self, writable: Sequence[Path]) -> tuple[CommandRunner, ReadOnly]:
        """At `bwrap` the command gets a sandbox of its own, which ends with it, and its /tmp too."""
        assert self._process is not None and self._read_only is not None
        if self._needs_landlock:
            return self.runner, replace(self._read_only, writable=writable)
        runner = self._make_own_runner(self._process.read_only(writable))
        return runner, replace(self._read_only, writable=[*writable, *self._list_private_folders()])

    @property
    def isolates_programs(self) -> bool:
        return isolates_programs(self.level)

    def program_variables(self, given: Mapping[str, str], place: ProgramPlace) -> Mapping[str, str]:
        return self.variables(given) if place.access is None else self._make_program_process(place).variables(given)

    async def prepare_program(self, place: ProgramPlace) -> CommandRunner:
        """At `uid` the principal's commands run as the same user, and the end of their sandbox kills that."""
        if place.access is not None:
            check_paths(place.access, self._sandbox.hidden_paths, self._root, place.shown_paths)
        if self.level == "uid":
            await self.runner.wait_ended()
        hosts = None if place.access is None else place.access.hosts
        rules = None if hosts is None or place.access is None else HostRules.parse(hosts, place.access.table)
        runner = self._make_own_runner(self._make_program_process(place), rules, place.on_refusal)
        self._program_runners.add(runner)
        return runner

    def _make_program_process(self, place: ProgramPlace) -> SandboxProcess:
        assert self._process is not None
        return self._process.for_program(place.shown_paths, place.access)

    def _make_own_runner(
        self,
        handle: SandboxProcess,
        rules: HostRules | None = None,
        on_refusal: Callable[[str], None] = lambda _text: None,
    ) -> CommandRunner:
        """Return the runner of one command in a sandbox of its own, which ends with the command. It reaches the hosts
        of `rules` alone, if there are any."""
        proxies: list[SandboxProxy] = []

        def open_proxy(listener: socket.socket) -> None:
            proxy = self._make_proxy(listener)
            if rules is not None:
                proxy.restrict(rules, on_refusal)
            proxies.append(proxy)

        def close_proxy() -> None:
            while proxies:
                self._in_background(proxies.pop().close())

        runner = self._make_runner(handle, open_proxy, close_proxy, IdleSandboxes(most=0))
        self._own_runners.add(runner)
        return runner

    def _list_private_folders(self) -> list[Path]:
        """Return those of PRIVATE that hold nothing else that is seen: a fifo there must not be written to either."""
        seen = (self._root, self._spool, *self._sandbox.readable_paths)
        return [path for path in PRIVATE if not any(each.is_relative_to(path) for each in seen)]

    def _make_runner(
        self,
        sandbox: SandboxHandle,
        on_enter: Callable[[socket.socket], None],
        on_exit: Callable[[], None],
        idle_sandboxes: IdleSandboxes,
    ) -> CommandRunner:
        return CommandRunner(
            sandbox,
            on_enter,
            on_exit,
            idle_sandboxes,
            self._starts,
            owner=str(self._spool),
            on_loss=self._note_loss,
        )

    @property
    def has_own_tmp(self) -> bool:
        return self.level == "bwrap" and PRIVATE[0] in self._list_private_folders()

    @property
    def _needs_landlock(self) -> bool:
        return self.level != "bwrap"

    @property
    def is_running(self) -> bool:
        runners = [*self._own_runners, *([] if self._runner is None else [self._runner])]
        return bool(self._closing) or any(runner.is_running for runner in runners)

    def release(self) -> None:
        """Remove the control group, and close the descriptor of the folders. Blocking."""
        self._process = None
        self._remove_group()
        self._close_cwd_folder()

    def _remove_group(self) -> None:
        group, self._group = self._group, None
        if group is not None:
            self._close_group(group)

    async def close(self) -> None:
        """End the sandbox with all its processes."""
        await asyncio.gather(*(runner.close() for runner in self._own_runners))
        if self._runner is not None:
            await self._runner.close()
        if self._closing:
            await asyncio.wait(self._closing)
        await asyncio.to_thread(self._remove_group)
        self._close_cwd_folder()

    def _make_folders(self) -> None:
        places = self._spool / CWD_FOLDER
        self._spool.mkdir(mode=0o700, parents=True, exist_ok=True)
        if places.is_symlink():  # from a restored copy that was tampered with
            places.unlink()
        places.mkdir(mode=0o700, exist_ok=True)
        if self.uid is not None:
            os.chown(places, self.uid, self.uid, follow_symlinks=False)
            os.chown(self._spool, -1, self.uid, follow_symlinks=False)
            self._spool.chmod(0o710)
        self._close_cwd_folder()
        self._cwd_folder = os.open(places, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)

    def _has_cwd_folder(self) -> bool:
        """Return whether the folder is the one that was made here: another part of the server may make it again."""
        if self._cwd_folder < 0:
            return False
        try:
            return os.path.samestat(os.fstat(self._cwd_folder), os.lstat(self._spool / CWD_FOLDER))
        except FileNotFoundError:
            return False

    def _close_cwd_folder(self) -> None:
        descriptor, self._cwd_folder = self._cwd_folder, -1
        if descriptor >= 0:
            os.close(descriptor)

    def _choose_uid(self) -> int | None:
        if self._sandbox.uids is None:
            return None
        if not self._is_exclusive:
            return self._root.stat().st_uid
        return assign_user(self._root, self._sandbox.uids, self._sandbox.free_users)

    def _on_enter(self, listener: socket.socket) -> None:
        self._proxy = self._make_proxy(listener)

    def _on_exit(self) -> None:
        proxy, self._proxy = self._proxy, None
        if proxy is not None:
            self._in_background(proxy.close())
        self._in_background(asyncio.to_thread(remove_cwd_files, self._spool / CWD_FOLDER, time.time()))

    def _in_background(self, work: Awaitable[None]) -> None:
        closing = asyncio.ensure_future(work)
        self._closing.add(closing)
        closing.add_done_callback(self._closing.discard)

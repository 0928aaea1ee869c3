"""Choose and try the server's sandbox at the start, and set up tools/workspace/sandbox/ for each principal."""

import asyncio
import contextlib
import fcntl
import hashlib
import logging
import os
import socket
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from toolgate.server.base.errors import UsageError
from toolgate.server.config import protected_paths
from toolgate.server.config.load import SYSTEM_STATE, Config
from toolgate.server.workspaces import checks
from toolgate.tools.api.outbound.address_policy import AddressPolicy
from toolgate.tools.workspace.limits import UNLIMITED, Limits, parse

if TYPE_CHECKING:
    from toolgate.tools.workspace.commands.environment import CommandEnvironment
    from toolgate.tools.workspace.processes.idle_sandboxes import IdleSandboxes
    from toolgate.tools.workspace.processes.process import ReadOnly
    from toolgate.tools.workspace.processes.start_queue import StartQueue
    from toolgate.tools.workspace.processes.zygote import CommandRunner
    from toolgate.tools.workspace.sandbox.cgroups import Cgroups, Group
    from toolgate.tools.workspace.sandbox.egress.sandbox_proxy import SandboxProxy
    from toolgate.tools.workspace.sandbox.egress.shared_limits import SharedProxyLimits
    from toolgate.tools.workspace.sandbox.levels import Level, Sandbox, TrialFolder

QUEUE_SHARE = 0.8  # of --hold for the wait for a sandbox; the rest is for its start and the command
CLOSE_WITHIN = 0.5  # seconds: the groups are empty as a rule
FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
RETRY, RETRY_MOST = 5.0, 300.0  # seconds before another try to end what dead servers left; it grows
PASS_THROUGH = 0o011  # users may pass through a folder without listing it

log = logging.getLogger("toolgate.sandbox")


class Sandboxing:
    """The sandbox of a server; `sandbox` is None without one."""

    def __init__(self, config: Config, state: Path, *, public: bool) -> None:
        """Raise UsageError where the options ask for more than this machine has. `public`: callers are remote."""
        self.limits = _limits(config)
        self._access = StateAccess(state)
        try:
            self.sandbox = choose_sandbox(config, state, self.limits, self._access.trial_folder, public=public)
        except UsageError:
            self._access.set_open(open_up=False)
            raise
        self._state = state
        self._shared: Path | None = config.workspace
        self._runner: CommandRunner | None = None  # of commands without a sandbox
        self._cgroups: Cgroups | None = None
        self.lost_sandboxes = 0  # that ended with commands in them
        self.weaknesses: list[str] = []  # of the sandbox and its limits
        self._groups: set[Group] = set()
        self._proxy_limits: SharedProxyLimits | None = None
        self._idle_sandboxes: IdleSandboxes | None = None
        self._starts: StartQueue | None = None
        self._hold = config.hold
        self._network_rules = (config.allow_private, config.refuse_networks)
        self.level: str = "none" if self.sandbox is None else self.sandbox.level
        if self.sandbox is not None:
            checks.check_workspace(config, state, self.sandbox)
            _log_level(self.sandbox, remote=config.is_remote)
            self._access.set_open(open_up=self.sandbox.level == "uid")
            self.weaknesses = [f"no stronger sandbox: {why}" for why in self.sandbox.lacking]
            if self.sandbox.level != "none":
                self._cgroups = self._find_cgroups()

    @property
    def isolates_environment(self) -> bool:
        """Whether a principal's commands can't read the environment of its programs."""
        if self.level == "none":
            return False
        from toolgate.tools.workspace.sandbox.process import isolates_programs  # start-up

        return isolates_programs(self.level)

    def describe(self) -> str:
        return "none" if self.sandbox is None else self.sandbox.describe()

    def make_environment(self, root: Path, spool: Path, *, alone: bool) -> "CommandEnvironment":
        """Return the environment of the principal whose workspace is `root`; `alone`: no other principal has it."""
        from toolgate.tools.workspace.commands.environment import (
            UnsandboxedEnvironment,  # start-up and memory, as its workspace
        )
        from toolgate.tools.workspace.processes.zygote import CommandRunner

        runner = self._runner = self._runner or CommandRunner()
        if self.sandbox is None or self.sandbox.level == "none":
            return UnsandboxedEnvironment(runner, self.limits, _build_read_only)
        from toolgate.tools.workspace.processes.idle_sandboxes import IdleSandboxes
        from toolgate.tools.workspace.processes.start_queue import StartQueue
        from toolgate.tools.workspace.sandbox.environment import SandboxedEnvironment  # start-up

        self._idle_sandboxes = self._idle_sandboxes or IdleSandboxes(seconds=self.limits.idle)
        self._starts = self._starts or StartQueue(patience=self._hold * QUEUE_SHARE)
        return SandboxedEnvironment(
            self.sandbox,
            root,
            spool,
            is_exclusive=alone,
            server_runner=runner,
            make_proxy=self._open_proxy,
            make_group=partial(self._group, hashlib.sha256(os.fsencode(spool)).hexdigest()[:32]),
            close_group=self._close_group,
            memory=self._cgroups is None or "memory" in self._cgroups.lacking,
            idle_sandboxes=self._idle_sandboxes,
            starts=self._starts,
            on_loss=self._count_loss,
        )

    def _count_loss(self) -> None:
        self.lost_sandboxes += 1

    async def close(self) -> None:
        """Close the runner of commands and the groups. Close the workspaces before."""
        if self._runner is not None:
            await self._runner.close()
        self._access.release()
        if self._cgroups is not None:
            await asyncio.to_thread(self._cgroups.close, CLOSE_WITHIN)

    async def balance_cpu(self) -> None:
        """Lower the CPU weight of principals that use much of it, until cancelled."""
        if self._cgroups is None:
            return
        from toolgate.tools.workspace.sandbox.cgroups.group import EVERY, CpuFairness  # start-up

        manners = CpuFairness()
        while True:
            await asyncio.sleep(EVERY)
            groups = list(self._groups)
            if groups or manners.has_groups:
                await asyncio.to_thread(manners.update, groups)

    async def end_orphans(self) -> None:
        """End the commands that dead servers left running. Try again where the machine is short of something."""
        pause = RETRY
        while not await self._try_to_end_orphans(pause):
            await asyncio.sleep(pause)
            pause = min(pause * 2, RETRY_MOST)

    async def _try_to_end_orphans(self, pause: float) -> bool:
        try:
            await self._end_orphans()
        except OSError as error:
            log.warning("commands of dead servers can't be ended: %s; the next try is in %d s", error, pause)
            return False
        return True

    async def _end_orphans(self) -> None:
        if self._cgroups is not None:
            for name, survivor in (await asyncio.to_thread(self._cgroups.sweep)).items():
                log.warning("a dead server left the control group %s: %s", name, survivor or "its commands are ended")
        await asyncio.to_thread(self._sweep_users)

    def _sweep_users(self) -> None:
        """End processes of sandbox users: one that broke out of its sandbox outlives its server."""
        if self.sandbox is None or self.sandbox.uids is None or self._shared is not None:
            return
        from toolgate.tools.workspace.sandbox import users  # start-up
        from toolgate.tools.workspace.sandbox.process import kill_user

        uids, unused = self.sandbox.uids, self.sandbox.uids[-1]
        with contextlib.suppress(FileNotFoundError):
            swept = users.end_deserted(
                self._state / "workspaces", self._state / "spool", uids, lambda uid: kill_user(uid, unused)
            )
            for name in swept:
                log.warning("a dead server left commands of %s: they are ended", name)

    def _find_cgroups(self) -> "Cgroups | None":
        from toolgate.tools.workspace.sandbox import cgroups  # start-up

        hierarchy = cgroups.find(move=True)
        if isinstance(hierarchy, str):
            lacking = f"limits hold for each process, not for all of a principal together ({hierarchy})"
            self.weaknesses.append(lacking)
            log.warning("no cgroups: %s", lacking)
            return None
        log.info("limits for each principal by %s", hierarchy)
        return hierarchy

    def _group(self, name: str, limits: Limits) -> "Group | None":
        if self._cgroups is None:
            return None
        group = self._cgroups.group(name, memory=limits.memory, processes=limits.processes)
        self._groups.add(group)
        return group

    def _close_group(self, group: "Group") -> None:
        self._groups.discard(group)
        if not group.close():
            log.warning("a control group can't be removed: a process in it can't be ended")

    def _open_proxy(self, listener: socket.socket) -> "SandboxProxy":
        from toolgate.tools.workspace.sandbox.egress.sandbox_proxy import SandboxProxy  # start-up
        from toolgate.tools.workspace.sandbox.egress.shared_limits import SharedProxyLimits

        self._proxy_limits = self._proxy_limits or SharedProxyLimits()
        outlet = SandboxProxy(listener, AddressPolicy.parse(*self._network_rules), shared=self._proxy_limits)
        outlet.open()
        return outlet


def _build_read_only() -> "ReadOnly | str":
    from toolgate.tools.workspace.processes import landlock
    from toolgate.tools.workspace.sandbox.read_only_filter import build_read_only  # start-up: only a plan needs it

    return build_read_only(landlock.find_version(), needs_landlock=True)


class StateAccess:
    """Open the state folder for the users that commands run as, so that they reach their workspaces.

    Level `uid` needs this. Other levels close the folders, unless another server needs them open: each of those holds a
    lock on `workspaces` until it ends.
    """

    def __init__(self, state: Path) -> None:
        self._folders = (state, state / "spool", state / "workspaces")
        self._state = state
        self._lock: int | None = None

    def trial_folder(self, level: "Level") -> Path:
        """Return where commands of `level` are tried: in the state, as they will run."""
        if level == "uid":
            self._open()
        return self._state

    def set_open(self, *, open_up: bool) -> None:
        """Open the folders, or close them unless another server needs them open."""
        if open_up:
            self._open()
            return
        self.release()
        descriptor = os.open(self._folders[-1], FOLDER)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            self._chmod(0o700)
        except BlockingIOError:
            log.debug("%s stays open for another server", self._state)
        finally:
            os.close(descriptor)

    def release(self) -> None:
        """Release the lock. The folders stay unchanged: another server may share them later."""
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def _open(self) -> None:
        if self._lock is None:
            descriptor = os.open(self._folders[-1], FOLDER)
            fcntl.flock(descriptor, fcntl.LOCK_SH)  # a process with the exclusive lock closes them, and is quick
            self._lock = descriptor
        self._chmod(0o700 | PASS_THROUGH)

    def _chmod(self, mode: int) -> None:
        for folder in self._folders:
            if folder.is_dir() and folder.stat().st_uid == os.geteuid():
                folder.chmod(mode)


def choose_sandbox(
    config: Config, state: Path, limits: Limits, trial_folder: "TrialFolder", *, public: bool
) -> "Sandbox | None":
    """Return the sandbox that the options ask for, or None. Raises UsageError."""
    level: Any = config.sandbox_level
    if level == "none" and not config.is_remote and config.sandbox_network in (None, "all"):
        return None
    from toolgate.tools.workspace.sandbox import levels  # start-up

    network: Any = config.sandbox_network or (None if config.is_remote else "all")
    options = levels.SandboxOptions(
        level,
        network,
        allow_none=not public,
        limits=limits,
        path=config.environment.get("PATH"),
        readable_paths=config.sandbox_paths,
        hidden_paths=protected_paths.hidden_paths(config, state),
        uids=config.sandbox_uids or levels.UIDS,
        trial_folder=trial_folder,
    )
    try:
        sandbox = levels.choose_sandbox(options)
        if sandbox.level == "uid" and sandbox.uids is not None:
            _check_links(state, sandbox.uids[0])
        return sandbox
    except levels.StateUnreachableError as error:
        raise UsageError(f"--state: {error}: {_suggest_state(config, state)}") from None
    except levels.SandboxUnavailableError as error:
        raise UsageError(f"--sandbox: {error}{_suggest_none(level, public=public)}") from None


def _check_links(state: Path, uid: int) -> None:
    """Raise UnreachableError if a folder of the state is a link to a place that `uid` can't reach."""
    from toolgate.tools.workspace.sandbox.levels import StateUnreachableError  # start-up
    from toolgate.tools.workspace.sandbox.trial import find_closed_folder

    for folder in (state / "spool", state / "workspaces"):
        closed = find_closed_folder(folder, uid) if folder.is_symlink() else None
        if closed is not None and closed != folder.resolve():  # that one is opened with the state
            raise StateUnreachableError(f"{folder}: users that commands run as can't pass through {closed}")


def probe_sandbox(config: Config) -> "Sandbox | None":
    """Return the sandbox that a server with these options would have; changes no state. Raises UsageError."""
    trial_folder = partial(_find_trial_folder, config.state)
    return choose_sandbox(config, config.state, _limits(config), trial_folder, public=config.is_public)


def _find_trial_folder(state: Path, level: "Level") -> Path | None:
    """Return where to try commands without opening the state: in it where users can pass, else in the folder above."""
    state = state.resolve()  # users pass through a link's target
    is_open = level != "uid" or (state.exists() and state.stat().st_mode & PASS_THROUGH == PASS_THROUGH)
    places = (state, *state.parents) if is_open else state.parents
    for place in places:
        if place.is_dir():
            return place if os.access(place, os.W_OK | os.X_OK) else None
    return None


def _suggest_state(config: Config, state: Path) -> str:
    """Return the remedy if commands can't reach the state."""
    is_in_use = not config.is_given("state") and (state / "state.db").exists() and not SYSTEM_STATE.exists()
    moved = f"stop what uses it, and mv {state} {SYSTEM_STATE}" if is_in_use else f"use --state {SYSTEM_STATE}"
    import shutil  # start-up: only for this refusal

    has_bwrap = shutil.which("bwrap", path=config.environment.get("PATH")) is not None
    return moved if has_bwrap else f"{moved}, or apt-get install bubblewrap"


def _suggest_none(level: str, *, public: bool) -> str:
    if level != "auto" or not public:
        return ""
    return ". Beyond localhost commands need a sandbox; --sandbox none --accept-unsandboxed serves without one"


def _limits(config: Config) -> Limits:
    """Return the limits: the defaults where people sign in or a sandbox is used. A --workspace has no default size."""
    signs_in = config.is_remote and config.auth != "none"
    base = Limits() if signs_in or config.sandbox_level != "none" else UNLIMITED
    if config.workspace is not None or not config.is_remote:
        base = replace(base, workspace=0, entries=0)
    return parse(config.limit, base)


def _log_level(sandbox: "Sandbox", *, remote: bool) -> None:
    for why in sandbox.lacking:
        log.warning("no stronger sandbox: %s", why)
    is_none = sandbox.level == "none"
    told = sandbox.describe() if is_none else f"sandbox {sandbox.describe()}"
    log.log(logging.WARNING if is_none and remote else logging.INFO, "%s", told)

"""Choose the sandbox level by trying: the one asked for, or the strongest that works, never a weaker one."""

import logging
import os
import shutil
import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Literal

import msgspec

from toolgate.tools.api.context.services import PYTHON
from toolgate.tools.workspace.limits import Limits
from toolgate.tools.workspace.sandbox import syscalls, trial
from toolgate.tools.workspace.sandbox.bwrap_args import SYSTEM, SandboxView
from toolgate.tools.workspace.sandbox.process import SandboxProcess
from toolgate.tools.workspace.sandbox.users import FreeUsers

Level = Literal["bwrap", "uid", "none"]
Network = Literal["none", "public", "all"]

UIDS = range(40_000, 50_000)  # below 65,536, the most that many containers have; systems leave these unused
GUIDE = "docs/container.md says what a container needs"
RIGHTS = "one of CAP_SETUID, CAP_SETGID, CAP_CHOWN, CAP_KILL, CAP_DAC_OVERRIDE and CAP_FOWNER"
HELP = {  # bwrap's message → what to do about it
    "mount proc": f"the container engine masks parts of /proc: --security-opt systempaths=unconfined; {GUIDE}",
    "new namespace": f"user namespaces are off, by the engine's seccomp profile or a sysctl; {GUIDE}",
    "make / slave": f"the container engine's AppArmor profile forbids mounts: --security-opt apparmor=…; {GUIDE}",
    "uid map": f"AppArmor restricts user namespaces: use another profile; {GUIDE}",
    "failed rtm_": f"AppArmor restricts user namespaces: use another profile; {GUIDE}",
}
INSTALL = "apt-get install bubblewrap"

log = logging.getLogger("toolgate.sandbox")


class SandboxUnavailableError(Exception):
    """The wanted level does not work; the text says why and what helps."""


class StateUnreachableError(SandboxUnavailableError):
    """The level works on this machine, but not where the state is. `auto` then does not fall back to `none`."""


TrialFolder = Callable[[Level], Path | None]  # the folder to try a level in; None: a temporary one


class SandboxOptions(msgspec.Struct, frozen=True):
    """The options about sandboxes. `allow_none`: whether `auto` may choose `none`. `network` None: not given."""

    level: Literal["auto", "bwrap", "uid", "none"]
    network: Network | None
    allow_none: bool
    limits: Limits
    path: str | None  # PATH, to find bwrap in
    readable_paths: Sequence[Path] = ()
    hidden_paths: Sequence[Path] = ()
    uids: range = UIDS
    trial_folder: TrialFolder = lambda level: None


class Sandbox(msgspec.Struct, frozen=True):
    """The sandbox level of this server. `lacking` says why each stronger level was not chosen."""

    level: Level
    network: Network
    limits: Limits
    uids: range | None = None  # of commands; the first is for trials, the last stays unused. None: the server's user
    bwrap: str | None = None
    filter: bytes = b""
    readable_paths: Sequence[Path] = ()
    hidden_paths: Sequence[Path] = ()
    lacking: Sequence[str] = ()
    free_users: FreeUsers = msgspec.field(default_factory=FreeUsers)

    def make_process(
        self,
        root: Path,
        spool: Path,
        cwd_folder: Path,
        uid: int | None,
        groups: Sequence[Path] = (),
        *,
        is_exclusive: bool = True,
    ) -> SandboxProcess:
        """Return the sandbox of the workspace `root`. `is_exclusive`: nothing else runs as `uid`."""
        inside = os.getuid() if uid is None else uid
        view = SandboxView(
            root,
            spool,
            cwd_folder,
            hidden_paths=self.hidden_paths,
            readable_paths=[*_interpreter_paths(), *self.readable_paths],
            uid=inside,
            gid=os.getgid() if uid is None else uid,
            tmp=self.limits.tmp,
            network=self.network == "all",
            user_namespace=self.uids is None,
        )
        unused = None if self.uids is None else self.uids[-1]
        has_proxy = self.network == "public"
        return SandboxProcess(view, self.bwrap, uid, self.filter, has_proxy, groups, is_exclusive, unused)

    def describe(self) -> str:
        """Return a line for the log and the doctor."""
        match self.level:
            case "none":
                return "no sandbox: commands have all the server's permissions"
            case "uid":
                return f"uid: a user for each principal, network {self.network}"
            case _:
                whose = "a user for each principal" if self.uids else "this user"
                return f"bwrap: namespaces and a system call filter, {whose}, network {self.network}"


def choose_sandbox(options: SandboxOptions) -> Sandbox:
    """Return the sandbox, after a trial. Raises SandboxUnavailableError."""
    if options.level != "auto":
        return {"none": _none, "bwrap": _bwrap, "uid": _uid}[options.level](options)
    lacking: list[str] = []
    unreachable: list[StateUnreachableError] = []
    for attempt in (_bwrap, _uid):
        try:
            return attempt(options, lacking)
        except SandboxUnavailableError as error:
            lacking.append(str(error))
            unreachable += [error] if isinstance(error, StateUnreachableError) else []
    if unreachable:
        raise unreachable[0]
    if not options.allow_none or options.network not in (None, "all"):
        raise SandboxUnavailableError("; ".join(lacking))
    return _none(options, lacking)


def _none(options: SandboxOptions, lacking: Sequence[str] = ()) -> Sandbox:
    if options.network not in (None, "all"):
        why = f"without a sandbox commands have the whole network, not {options.network}: use --sandbox-network all"
        raise SandboxUnavailableError(why)
    return Sandbox("none", "all", options.limits, lacking=lacking)


def _bwrap(options: SandboxOptions, lacking: Sequence[str] = ()) -> Sandbox:
    if sys.platform != "linux":
        raise SandboxUnavailableError("bwrap: it needs Linux")
    program = shutil.which("bwrap", path=options.path)
    if program is None:
        raise SandboxUnavailableError(f"bwrap: it is not installed: {INSTALL}")
    found = Sandbox(
        "bwrap",
        options.network or "public",
        options.limits,
        uids=options.uids if os.geteuid() == 0 else None,
        bwrap=program,
        filter=_filter("bwrap"),
        readable_paths=options.readable_paths,
        hidden_paths=options.hidden_paths,
    )
    _check_sandbox(found, options)
    return found


def _uid(options: SandboxOptions, lacking: Sequence[str] = ()) -> Sandbox:
    """Return the `uid` level. Without namespaces a public-only network is impossible, so the default is no network."""
    if sys.platform != "linux" or os.geteuid() != 0:
        raise SandboxUnavailableError("uid: only root can run commands as other users")
    if options.network == "public":
        why = "uid: without namespaces the network is all or none: choose with --sandbox-network"
        raise SandboxUnavailableError(why)
    network = options.network or "none"
    found = Sandbox(
        "uid",
        network,
        options.limits,
        uids=options.uids,
        filter=_filter("uid", offline=network == "none"),
        hidden_paths=options.hidden_paths,
        lacking=lacking,
    )
    _check_sandbox(found, options)
    return found


def _filter(level: str, *, offline: bool = False) -> bytes:
    try:
        return syscalls.program(offline=offline)
    except syscalls.FilterUnavailableError as error:
        raise SandboxUnavailableError(f"{level}: {error}") from None


def _check_sandbox(sandbox: Sandbox, options: SandboxOptions) -> None:
    """Run a command where those of principals will run. Raises SandboxUnavailableError."""
    place = options.trial_folder(sandbox.level)
    failure = _run_trial(sandbox, options, place)
    if failure == trial.NO_ROOM and place is not None:  # a full disk is no fault of the sandbox
        failure = _run_trial(sandbox, options, None)
    if failure is None:
        return
    if place is not None and _run_trial(sandbox, options, None) is None:
        closed = None if sandbox.uids is None else trial.find_closed_folder(place, sandbox.uids[0])
        if sandbox.level == "uid" and closed is not None:
            raise StateUnreachableError(f"users that commands run as can't pass through {closed}")
        raise StateUnreachableError(f"{sandbox.level}: no command runs in {place}: {failure}")
    raise SandboxUnavailableError(f"{sandbox.level}: {failure}{_format_help(failure)}")


def _run_trial(sandbox: Sandbox, options: SandboxOptions, place: Path | None) -> str | None:
    """Return what went wrong, or None."""
    uid = None if sandbox.uids is None else sandbox.uids[0]

    build = partial(sandbox.make_process, uid=uid, is_exclusive=False)  # another server may try as the same user
    try:
        return trial.run_trial(build, place, uid, options.path or "")
    except PermissionError as error:  # root lacks a capability
        return f"{error.strerror}, though this is root: it lacks {RIGHTS}; {GUIDE}"
    except OSError as error:
        return error.strerror or str(error)


def _format_help(failure: str) -> str:
    found = [help for mark, help in HELP.items() if mark in failure.lower()]
    return f" ({found[0]})" if found else ""


def _interpreter_paths() -> list[Path]:
    """Return the interpreter's folders that the sandbox does not show anyway."""
    prefixes = {Path(sys.base_prefix).resolve(), Path(PYTHON).parent.parent}
    return [path for path in sorted(prefixes) if not any(path.is_relative_to(tree) for tree in SYSTEM)]

"""Chooses how commands are kept apart, by trying: the level that was asked for or the strongest there is, never a
weaker one than was allowed. Knows this machine; knows no principal.
"""

import contextlib
import logging
import os
import pwd
import shutil
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal

from toolgate.tools.sandbox import syscalls, trial
from toolgate.tools.sandbox.bwrap_args import SYSTEM, View
from toolgate.tools.sandbox.process import PROGRAM, Cell
from toolgate.tools.workspace.limits import Limits

Level = Literal["bwrap", "uid", "none"]
Network = Literal["none", "public", "all"]

UIDS = range(40_000, 50_000)  # below 65,536, which is all that many containers have; systems give these to nobody
GUIDE = "docs/container.md says what a container needs"
RIGHTS = "one of CAP_SETUID, CAP_SETGID, CAP_CHOWN, CAP_KILL, CAP_DAC_OVERRIDE and CAP_FOWNER"
HELP = {  # what keeps a sandbox from being made, by what bwrap says of it
    "mount proc": f"this container's engine masks parts of /proc: --security-opt systempaths=unconfined; {GUIDE}",
    "new namespace": f"no user namespaces here: the engine's seccomp profile, or a sysctl, keeps them; {GUIDE}",
    "make / slave": f"the engine's AppArmor profile keeps programs from mounting: --security-opt apparmor=…; {GUIDE}",
    "uid map": f"AppArmor keeps user namespaces from being of use: another profile helps; {GUIDE}",
    "failed rtm_": f"AppArmor keeps user namespaces from being of use: another profile helps; {GUIDE}",
}
INSTALL = "apt-get install bubblewrap"

log = logging.getLogger("toolgate.sandbox")


class Unavailable(Exception):
    """The level that is wanted can't be had; the text says why and what helps."""


class UnreachableError(Unavailable):
    """The level works on this machine, but not where the state is. `auto` does not end up as `none` for that."""


Ground = Callable[[Level], Path | None]  # the folder that a level is tried in; None: the one for temporary files


@dataclass(frozen=True, slots=True)
class Wanted:
    """What the options say. `unsandboxed`: whether `auto` may end up as `none`. `network` None: nothing was said."""

    level: Literal["auto", "bwrap", "uid", "none"]
    network: Network | None
    unsandboxed: bool
    limits: Limits
    path: str | None  # PATH, where bwrap is looked for
    shown: Sequence[Path] = ()
    hidden: Sequence[Path] = ()
    uids: range = UIDS
    ground: Ground = lambda level: None


@dataclass(frozen=True, slots=True)
class Sandbox:
    """How the commands of this server are kept apart. `lacking` says, for each stronger level, why it is not that."""

    level: Level
    network: Network
    limits: Limits
    uids: range | None = None  # whom commands run as; the first to try it, the last nobody. None: the server's user
    bwrap: str | None = None
    filter: bytes = b""
    shown: Sequence[Path] = ()
    hidden: Sequence[Path] = ()
    lacking: Sequence[str] = field(default=())

    def cell(
        self,
        root: Path,
        spool: Path,
        places: Path,
        uid: int | None,
        groups: Sequence[Path] = (),
        *,
        alone: bool = True,
    ) -> Cell:
        """The sandbox of a principal whose workspace is `root`. `alone`: nothing else runs as `uid`."""
        inside = os.getuid() if uid is None else uid
        view = View(
            root,
            spool,
            places,
            hidden=self.hidden,
            shown=[*_interpreter(), *self.shown],
            uid=inside,
            gid=os.getgid() if uid is None else uid,
            tmp=self.limits.tmp,
            network=self.network == "all",
            user_namespace=self.uids is None,
        )
        cell = Cell(view, self.bwrap, uid, self.filter, self.network == "public", groups, alone)
        return cell if self.uids is None else replace(cell, nobody=self.uids[-1])

    def told(self) -> str:
        """A line for the log and the doctor."""
        match self.level:
            case "none":
                return "none: commands are not kept apart from anything this process may do"
            case "uid":
                return f"uid: a user for each principal, network {self.network}"
            case _:
                whose = "a user for each principal" if self.uids else "this user"
                return f"bwrap: namespaces and a system call filter, {whose}, network {self.network}"


def chosen(wanted: Wanted) -> Sandbox:
    """The sandbox, tried out. Raises Unavailable."""
    match wanted.level:
        case "none":
            return _none(wanted, [])
        case "bwrap":
            return _bwrap(wanted)
        case "uid":
            return _uid(wanted, [])
        case _:
            return _strongest(wanted)


def _strongest(wanted: Wanted) -> Sandbox:
    lacking: list[str] = []
    unreachable: UnreachableError | None = None
    tries: list[Callable[[], Sandbox]] = [lambda: _bwrap(wanted), lambda: _uid(wanted, lacking)]
    for attempt in tries:
        try:
            return attempt()
        except Unavailable as error:
            lacking.append(str(error))
            if isinstance(error, UnreachableError):
                unreachable = unreachable or error
    if unreachable is not None:
        raise unreachable
    if not wanted.unsandboxed or wanted.network not in (None, "all"):
        raise Unavailable("; ".join(lacking))
    return _none(wanted, lacking)


def _none(wanted: Wanted, lacking: Sequence[str]) -> Sandbox:
    if wanted.network not in (None, "all"):
        raise Unavailable(f"without a sandbox commands have all the network there is, not {wanted.network}")
    return Sandbox("none", "all", wanted.limits, lacking=lacking)


def _bwrap(wanted: Wanted) -> Sandbox:
    if sys.platform != "linux":
        raise Unavailable("bwrap: there is none but on Linux")
    program = shutil.which("bwrap", path=wanted.path)
    if program is None:
        raise Unavailable(f"bwrap: it is not installed: {INSTALL}")
    network = wanted.network or "public"
    found = Sandbox(
        "bwrap",
        network,
        wanted.limits,
        uids=wanted.uids if os.geteuid() == 0 else None,
        bwrap=program,
        filter=_filter("bwrap"),
        shown=wanted.shown,
        hidden=wanted.hidden,
    )
    _try(found, wanted)
    return found


def _uid(wanted: Wanted, lacking: Sequence[str]) -> Sandbox:
    """Without namespaces no network can be had that is public only; where nothing was said there is none."""
    if sys.platform != "linux" or os.geteuid() != 0:
        raise Unavailable("uid: only root can run commands as other users")
    if wanted.network == "public":
        raise Unavailable("uid: without namespaces the network is all or none; say which with --sandbox-network")
    network = wanted.network or "none"
    found = Sandbox(
        "uid",
        network,
        wanted.limits,
        uids=wanted.uids,
        filter=_filter("uid", offline=network == "none"),
        hidden=wanted.hidden,
        lacking=lacking,
    )
    _try(found, wanted)
    return found


def _filter(level: str, *, offline: bool = False) -> bytes:
    try:
        return syscalls.program(offline=offline)
    except syscalls.NoFilter as error:
        raise Unavailable(f"{level}: {error}") from None


def _try(sandbox: Sandbox, wanted: Wanted) -> None:
    """Run a command in one, where those of principals will run. Raises Unavailable."""
    place = wanted.ground(sandbox.level)
    said = _tried(sandbox, wanted, place)
    if said == trial.NO_ROOM and place is not None:  # a full disk takes no sandbox away
        said = _tried(sandbox, wanted, None)
    if said is None:
        return
    if place is not None and _tried(sandbox, wanted, None) is None:
        closed = None if sandbox.uids is None else trial.closed_folder(place, sandbox.uids[0])
        if sandbox.level == "uid" and closed is not None:
            raise UnreachableError(f"users that commands run as can't pass through {closed}")
        raise UnreachableError(f"{sandbox.level}: no command runs in {place}: {said}")
    raise Unavailable(f"{sandbox.level}: {said}{_help(said)}")


def _tried(sandbox: Sandbox, wanted: Wanted, place: Path | None) -> str | None:
    """Return what went wrong."""
    uid = None if sandbox.uids is None else sandbox.uids[0]

    def build(root: Path, spool: Path, places: Path) -> Cell:
        return sandbox.cell(root, spool, places, uid, alone=False)  # another server may try as the same user now

    try:
        return trial.attempt(build, place, uid, wanted.path or "")
    except PermissionError as error:  # root has less than all it takes
        return f"{error.strerror}, though this is root: it lacks {RIGHTS}; {GUIDE}"
    except OSError as error:
        return error.strerror or str(error)


def _help(said: str) -> str:
    found = [help for mark, help in HELP.items() if mark in said.lower()]
    return f" ({found[0]})" if found else ""


def _interpreter() -> list[Path]:
    """Where the interpreter lies that goes in, as far as that is not seen anyhow."""
    prefixes = {Path(sys.base_prefix).resolve(), Path(PROGRAM).parent.parent}
    return [path for path in sorted(prefixes) if not any(path.is_relative_to(tree) for tree in SYSTEM)]


def free(uid: int) -> bool:
    """Whether the system knows no such user."""
    with contextlib.suppress(KeyError):
        pwd.getpwuid(uid)
        return False
    return True

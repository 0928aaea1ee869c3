"""Find the cgroups that a server can have, and make a group for each principal."""

import contextlib
import os
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path, PurePosixPath

import msgspec

from toolgate.tools.workspace.sandbox.cgroups.files import read_numbers, read_words
from toolgate.tools.workspace.sandbox.cgroups.group import Group, GroupFolder
from toolgate.tools.workspace.sandbox.cgroups.server_group import WEIGHT, ServerGroup, new_name
from toolgate.tools.workspace.sandbox.cgroups.versions import V1, V2, Allowance, CgroupVersion

LIMITING: Sequence[str] = ("memory", "pids", "cpu")
CONTROLLERS = frozenset(LIMITING) | {"cpuacct"}  # limits nothing: on v1 it counts the CPU time
NAME = re.compile(r"[0-9a-f]{8,128}")
WITHIN = 5.0  # seconds
VERSIONS = {"cgroup": V1, "cgroup2": V2}  # by the type of the file system
PROC = Path("/proc/self")


class Hierarchy(msgspec.Struct, frozen=True):
    """One cgroup hierarchy. `top` is the parent of our groups; this process is in it or in its leaf."""

    top: Path
    controllers: frozenset[str]
    version: CgroupVersion


class Cgroups:
    """A server group in each usable hierarchy. `lacking`: unusable controllers, and why. `str` of it is for people:
    `cgroup v1 (cpu, pids), without memory: …`. Any thread may call."""

    def __init__(self, server_groups: Sequence[ServerGroup], lacking: Mapping[str, str]) -> None:
        self._server_groups = server_groups
        self.lacking = lacking

    def __str__(self) -> str:
        folders = [group.folder for group in self._server_groups]
        versions = " and ".join(sorted({folder.version.name for folder in folders}))
        had = ", ".join(name for name in LIMITING if any(name in folder.controllers for folder in folders))
        return f"cgroup {versions} ({had})" + (f", without {_format_reasons(self.lacking)}" if self.lacking else "")

    def group(self, name: str, *, memory: int = 0, processes: int = 0, weight: int = 0) -> Group:
        """Return the group `name` (a hex digest), new or existing, with limits of bytes, processes with threads, CPU
        weight. 0 is no limit; weight 0 is the usual 100. Raises ValueError, or OSError if the group can't be made."""
        if not NAME.fullmatch(name):
            raise ValueError(f"{name!r} is not a hex digest")
        allowance = Allowance(memory, processes, weight)
        folders: list[GroupFolder] = []
        with contextlib.ExitStack() as undo:
            for group in self._server_groups:
                folder, is_new = group.make_folder(name)
                if is_new:
                    undo.callback(folder.path.rmdir)
                folder.limit(allowance)
                folders.append(folder)
            undo.pop_all()
        return Group(folders, allowance)

    def sweep(self, within: float = WITHIN) -> dict[str, str]:
        """End the groups of dead servers beside ours. Return their names and errors ("" for none). Waits `within`
        seconds for each hierarchy. Raises OSError."""
        swept: dict[str, str] = {}
        for group in self._server_groups:
            for name, error in group.sweep(time.monotonic() + within).items():
                swept[name] = swept.get(name) or error
        return swept

    def close(self, within: float = WITHIN) -> bool:
        """Kill all processes in all groups and remove the groups. Return whether they are gone. Waits `within` seconds
        for each hierarchy."""
        gone = [group.close(within) for group in self._server_groups]
        return all(gone)


def find(*, move: bool = False, weight: int = WEIGHT) -> Cgroups | str:
    """Return the groups that can be made below this process's group, or why there are none. The caller closes them.

    `move`: if v2 needs it, move this process (before it starts others) to a leaf of its own group. `weight`: the CPU
    weight of all groups together, against 100 of the server (on v1, of each process beside them).
    """
    try:
        present = find_hierarchies(CONTROLLERS)
    except OSError as error:
        return f"{error.filename}: {error.strerror}"
    name, groups = new_name(), list[ServerGroup]()
    lacking = dict.fromkeys(LIMITING, "not mounted here, or not passed on to the server's group")
    for hierarchy in present:
        try:
            groups.append(_make_group(hierarchy, name, move, weight, lacking))
        except OSError as error:
            lacking |= dict.fromkeys(hierarchy.controllers & lacking.keys(), f"{error.filename}: {error.strerror}")
    if not any(set(LIMITING) & group.folder.controllers for group in groups):
        for group in groups:
            group.close()
        return _format_reasons(lacking)
    return Cgroups(groups, lacking)


def _make_group(hierarchy: Hierarchy, name: str, move: bool, weight: int, lacking: dict[str, str]) -> ServerGroup:
    """Make a server group with controllers from `lacking`; note there why the rest are unusable."""
    refused = hierarchy.version.prepare(hierarchy.top, hierarchy.controllers, move)
    controllers = hierarchy.controllers - refused.keys()
    group = ServerGroup(GroupFolder(hierarchy.top / name, controllers, hierarchy.version), weight)
    lacking |= refused
    for controller in controllers:
        lacking.pop(controller, None)
    return group


def find_hierarchies(wanted: frozenset[str]) -> list[Hierarchy]:
    """Return each hierarchy with a wanted controller once. Raises OSError if there is no /proc. The pids hierarchy
    comes first: a group halted there forks nothing while the others are cleared."""
    groups = dict(_groups((PROC / "cgroup").read_text()))
    found: dict[frozenset[str], Hierarchy] = {}
    for mount, root, kind, options in _mounts((PROC / "mountinfo").read_text()):
        names = [""] if kind == "cgroup2" else sorted(options)  # v2's line has no controller
        path = next((groups[name] for name in names if name in groups), None)
        own = None if path is None else _own(mount, root, path)
        if own is not None:
            top = VERSIONS[kind].top(own)
            offered = wanted & (options if kind == "cgroup" else read_words(top / "cgroup.controllers"))
            if offered not in found or not os.access(found[offered].top, os.W_OK):  # mounted twice: the writable one
                found[offered] = Hierarchy(top, offered, VERSIONS[kind])
    found.pop(frozenset(), None)
    return sorted(found.values(), key=lambda hierarchy: "pids" not in hierarchy.controllers)


def _groups(text: str) -> Iterator[tuple[str, str]]:
    """Yield controller and path of lines `4:cpu,cpuacct:/a` and `0::/b`."""
    for line in text.splitlines():
        _, controllers, path = line.split(":", 2)
        yield from ((controller, path) for controller in controllers.split(","))


def _mounts(text: str) -> Iterator[tuple[Path, str, str, frozenset[str]]]:
    """Yield folder, root, type and options of each mount (proc_pid_mountinfo(5))."""
    for line in text.splitlines():
        left, _, right = line.partition(" - ")
        fields, (kind, _, options) = left.split(), right.split(" ", 2)
        if kind in VERSIONS:
            yield Path(_plain(fields[4])), _plain(fields[3]), kind, frozenset(options.split(","))


def _plain(field: str) -> str:
    return re.sub(r"\\([0-7]{3})", lambda match: chr(int(match[1], 8)), field)


def _own(mount: Path, root: str, path: str) -> Path | None:
    """Return the folder of our group, or None if the mount does not show it."""
    own, top = PurePosixPath(path), PurePosixPath(root)
    if ".." in own.parts or not own.is_relative_to(top):
        return None
    folder = mount / own.relative_to(top)
    return folder if os.getpid() in read_numbers(folder / "cgroup.procs") else None


def _format_reasons(lacking: Mapping[str, str]) -> str:
    """Format each reason once, with its controllers."""
    reasons: dict[str, list[str]] = {}
    for controller in sorted(lacking, key=LIMITING.index):
        reasons.setdefault(lacking[controller], []).append(controller)
    return "; ".join(f"{', '.join(controllers)}: {reason}" for reason, controllers in reasons.items())

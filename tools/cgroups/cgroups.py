"""Find the cgroups that a server can have, and make a group for each principal."""

import contextlib
import re
import time
from collections.abc import Mapping, Sequence

from toolgate.tools.cgroups.group import Group, GroupFolder
from toolgate.tools.cgroups.hierarchies import Hierarchy, find_hierarchies
from toolgate.tools.cgroups.server_group import WEIGHT, ServerGroup, new_name
from toolgate.tools.cgroups.version import Allowance

LIMITING: Sequence[str] = ("memory", "pids", "cpu")
CONTROLLERS = frozenset(LIMITING) | {"cpuacct"}  # which limits nothing: on v1 it tells the CPU time
NAME = re.compile(r"[0-9a-f]{8,128}")
WITHIN = 5.0  # seconds


class Cgroups:
    """A server group in each hierarchy that can be had. `lacking`: controllers that can't be had, and why.

    `str` of it is for people: `cgroup v1 (cpu, pids), without memory: …`. Any thread may call.
    """

    def __init__(self, server_groups: Sequence[ServerGroup], lacking: Mapping[str, str]) -> None:
        self._server_groups = server_groups
        self.lacking = lacking

    def __str__(self) -> str:
        folders = [group.folder for group in self._server_groups]
        versions = " and ".join(sorted({folder.version.name for folder in folders}))
        had = ", ".join(name for name in LIMITING if any(name in folder.controllers for folder in folders))
        return f"cgroup {versions} ({had})" + (f", without {_format_reasons(self.lacking)}" if self.lacking else "")

    def group(self, name: str, *, memory: int = 0, processes: int = 0, weight: int = 0) -> Group:
        """The group of that name (a hex digest), new or as it is, held to bytes, processes with threads, CPU weight.

        0 is no limit, and of weight the usual 100. Raises ValueError, or OSError when it can't be had.
        """
        if not NAME.fullmatch(name):
            raise ValueError(f"{name!r} is not a hex digest")
        allowance = Allowance(memory, processes, weight)
        with contextlib.ExitStack() as undo:
            folders = [self._make_folder(group, name, allowance, undo) for group in self._server_groups]
            undo.pop_all()
        return Group(folders, allowance)

    def _make_folder(
        self, group: ServerGroup, name: str, allowance: Allowance, undo: contextlib.ExitStack
    ) -> GroupFolder:
        folder, new = group.make_folder(name)
        if new:
            undo.callback(folder.path.rmdir)
        folder.limit(allowance)
        return folder

    def sweep(self, within: float = WITHIN) -> dict[str, str]:
        """End what dead servers left beside ours: which, and what kept it ("" when nothing did).

        Waits `within` seconds for each hierarchy. Raises OSError.
        """
        swept: dict[str, str] = {}
        for group in self._server_groups:
            for name, kept in group.sweep(time.monotonic() + within).items():
                swept[name] = swept.get(name) or kept
        return swept

    def close(self, within: float = WITHIN) -> bool:
        """Kill what is in all groups, and remove them. Waits `within` seconds for each hierarchy; are they gone?"""
        gone = [group.close(within) for group in self._server_groups]
        return all(gone)


def find(*, move: bool = False, weight: int = WEIGHT) -> Cgroups | str:
    """What can be had below the group this process is in, or why nothing can. Makes the server groups: close it.

    `move`: where v2 needs it, move this process (before it starts others) to a leaf of its own group. `weight`: of
    all groups together, for the CPU, against 100 of the server (on v1, of each process beside them).
    """
    try:
        present = find_hierarchies(CONTROLLERS)
    except OSError as error:
        return f"{error.filename}: {error.strerror}"
    name, groups = new_name(), list[ServerGroup]()
    lacking = dict.fromkeys(LIMITING, "not mounted here, or not passed on to the server's group")
    for hierarchy in present:
        try:
            groups.append(_make_server_group(hierarchy, name, move, weight, lacking))
        except OSError as error:
            lacking |= dict.fromkeys(hierarchy.controllers & lacking.keys(), f"{error.filename}: {error.strerror}")
    if not any(set(LIMITING) & group.folder.controllers for group in groups):
        for group in groups:
            group.close()
        return _format_reasons(lacking)
    return Cgroups(groups, lacking)


def _make_server_group(
    hierarchy: Hierarchy, name: str, move: bool, weight: int, lacking: dict[str, str]
) -> ServerGroup:
    """Takes what it has from `lacking`, and adds why it has not the rest."""
    refused = hierarchy.version.prepare(hierarchy.top, hierarchy.controllers, move)
    controllers = hierarchy.controllers - refused.keys()
    group = ServerGroup(GroupFolder(hierarchy.top / name, controllers, hierarchy.version), weight)
    lacking |= refused
    for controller in controllers:
        lacking.pop(controller, None)
    return group


def _format_reasons(lacking: Mapping[str, str]) -> str:
    """Each reason once, with the controllers it holds for."""
    reasons: dict[str, list[str]] = {}
    for controller in sorted(lacking, key=LIMITING.index):
        reasons.setdefault(lacking[controller], []).append(controller)
    return "; ".join(f"{', '.join(controllers)}: {reason}" for reason, controllers in reasons.items())

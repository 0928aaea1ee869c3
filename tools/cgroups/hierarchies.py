"""Find which cgroup hierarchies are mounted, and where in each this process is, as the kernel says."""

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from toolgate.tools.cgroups.files import read_numbers, read_words
from toolgate.tools.cgroups.v1 import V1
from toolgate.tools.cgroups.v2 import V2
from toolgate.tools.cgroups.version import CgroupVersion

VERSIONS = {"cgroup": V1, "cgroup2": V2}  # type of file system → what is spoken there
PROC = Path("/proc/self")


@dataclass(frozen=True, slots=True)
class Hierarchy:
    """`top`: the folder of the group below which ours go; this process is in it, or in a leaf of it."""

    top: Path
    controllers: frozenset[str]
    version: CgroupVersion


def find_hierarchies(wanted: frozenset[str]) -> list[Hierarchy]:
    """Those with a wanted controller, each once. Raises OSError where there is no /proc.

    The one of pids is the first: what is killed there starts nothing meanwhile, and is then gone from the others too.
    """
    groups = dict(_groups((PROC / "cgroup").read_text()))
    found: dict[frozenset[str], Hierarchy] = {}
    for mount, root, kind, options in _mounts((PROC / "mountinfo").read_text()):
        path = next((groups[name] for name in ("", *sorted(options)) if _names(name, kind) and name in groups), None)
        own = None if path is None else _own(mount, root, path)
        if own is not None:
            top = VERSIONS[kind].top(own)
            offered = wanted & (options if kind == "cgroup" else read_words(top / "cgroup.controllers"))
            if offered not in found or not os.access(found[offered].top, os.W_OK):  # mounted twice: the better one
                found[offered] = Hierarchy(top, offered, VERSIONS[kind])
    found.pop(frozenset(), None)
    return sorted(found.values(), key=lambda hierarchy: "pids" not in hierarchy.controllers)


def _names(name: str, kind: str) -> bool:
    """v2's line in /proc/self/cgroup is the one without a controller."""
    return (name == "") == (kind == "cgroup2")


def _groups(text: str) -> Iterator[tuple[str, str]]:
    """Controller and path, of lines `4:cpu,cpuacct:/a` and `0::/b`."""
    for line in text.splitlines():
        _, controllers, path = line.split(":", 2)
        yield from ((controller, path) for controller in controllers.split(","))


def _mounts(text: str) -> Iterator[tuple[Path, str, str, frozenset[str]]]:
    """Where, from which root, of which type and with which options: proc_pid_mountinfo(5)."""
    for line in text.splitlines():
        left, _, right = line.partition(" - ")
        fields, (kind, _, options) = left.split(), right.split(" ", 2)
        if kind in VERSIONS:
            yield Path(_plain(fields[4])), _plain(fields[3]), kind, frozenset(options.split(","))


def _plain(field: str) -> str:
    return re.sub(r"\\([0-7]{3})", lambda match: chr(int(match[1], 8)), field)


def _own(mount: Path, root: str, path: str) -> Path | None:
    """The folder of our group; None when that is not below what is mounted, or it is not where we are."""
    own, top = PurePosixPath(path), PurePosixPath(root)
    if ".." in own.parts or not own.is_relative_to(top):
        return None
    folder = mount / own.relative_to(top)
    return folder if os.getpid() in read_numbers(folder / "cgroup.procs") else None

"""Read where the command of a mount may go: `network` and `files`."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from toolgate.server.config.load import Config
from toolgate.server.config.protected_paths import find_unwritable, hidden_paths
from toolgate.server.features.mounts.config.faults import MountValueError
from toolgate.server.features.mounts.config.mount_config import MountConfig, MountPath
from toolgate.server.features.mounts.config.values import read_arguments, read_folder
from toolgate.tools.workspace.workspace import ProgramAccess

WRITABLE, READABLE = ":rw", ":ro"  # behind a path


def read_network(value: Any) -> tuple[str, ...]:
    """Return the entries of a list of hosts. Raises ValueError."""
    from toolgate.tools.workspace.sandbox.egress.host_rules import HostRules  # start-up: few mounts name hosts

    entries = read_arguments(value)
    HostRules.parse(entries, "")
    return entries


def read_files(value: Any) -> tuple[MountPath, ...]:
    """Return the paths of a list, in which ":rw" marks those that are written to. Raises MountValueError."""
    found: list[MountPath] = []
    for word in read_arguments(value):
        path = _normalise(read_folder(word.removesuffix(WRITABLE).removesuffix(READABLE)))
        for other in found:
            if path.is_relative_to(other.path) or other.path.is_relative_to(path):
                raise MountValueError(f"{path} and {other.path} are one in the other: name one of them")
        found.append(MountPath(path, word.endswith(WRITABLE)))
    return tuple(found)


def create_access(config: MountConfig) -> ProgramAccess | None:
    """Return where the command may go, or None: where its principal's commands may."""
    if config.network is None and not config.files:
        return None
    return ProgramAccess(
        f"[mounts.{config.name}]",
        config.network,
        tuple(each.path for each in config.files if not each.is_writable),
        tuple(each.path for each in config.files if each.is_writable),
    )


def find_exposed(config: Config, mount: MountConfig) -> str | None:
    """Return which path of `files` must not be shown to a command, and why, or None. A node checks those of its own
    machine."""
    if not mount.files:
        return None
    from toolgate.tools.workspace.sandbox.program_paths import find_path_fault  # start-up: few mounts name files

    hidden: Sequence[Path] = () if config.node else hidden_paths(config, config.state)
    for each in mount.files:
        fault = find_path_fault(each.path, hidden)
        if fault is None and each.is_writable:
            fault = find_unwritable(config, each.path)
        if fault is not None:
            return fault
    return None


def find_replaceable(mount: MountConfig, mounts: Sequence[MountConfig]) -> str | None:
    """Return which path of a mount others may write above, who could put a link in its place; or None."""
    writable = [(each.path, other.name) for other in mounts for each in other.files if each.is_writable]
    if not writable:
        return None
    from toolgate.tools.workspace.sandbox.program_paths import is_inside  # start-up, as above

    own = [each.path for each in mount.files]
    for path in own if mount.cwd is None else [*own, mount.cwd]:
        for folder, name in writable:
            if path != folder and is_inside(path, folder):
                return f"{path} is in {folder}, where the command of [mounts.{name}] writes: name {folder}, or another"
    return None


def _normalise(path: Path) -> Path:
    """Return the path. Raises MountValueError where it goes up, which links make another path than it looks."""
    if ".." in path.parts:
        raise MountValueError(f"{path} must be written without ..")
    return path

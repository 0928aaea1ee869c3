"""Check that a workspace exposes no secret of the server, and no system folder, to sandboxed commands."""

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from toolgate.server.base.errors import UsageError
from toolgate.server.config.load import Config
from toolgate.server.config.protected_paths import hidden_paths, is_system_folder

if TYPE_CHECKING:
    from toolgate.tools.workspace.sandbox.levels import Sandbox


def check_workspace(config: Config, state: Path, sandbox: "Sandbox") -> None:
    """Raise UsageError where --workspace is a system folder, or contains plugins or secrets of the server."""
    root = config.find_shared_workspace()
    if sandbox.level == "none" or root is None:
        return
    for refusal in _refusals(config, state, sandbox, root.resolve()):
        raise UsageError(refusal)


def _refusals(config: Config, state: Path, sandbox: "Sandbox", root: Path) -> Iterator[str]:
    if is_system_folder(root):
        yield f"--workspace: {root} is a system folder, which sandboxed commands could change: name another folder"
    if sandbox.uids is not None and root.stat().st_uid == 0:
        yield (
            f"--workspace: {root} belongs to root, and sandboxed commands never run as root: chown it, or use "
            "--sandbox none"
        )
    if sandbox.level == "uid":
        yield (
            f"--workspace: at level uid commands would run as the owner of {root}, with all files of that user: omit "
            "it, and each person gets a folder and a user; or install bubblewrap"
        )
    covered = [
        folder.resolve() for folder in (state, config.own_folder, config.logs) if folder is not None
    ]  # hidden whole
    for hidden in hidden_paths(config, state):
        if hidden.is_relative_to(root) and not any(hidden.is_relative_to(folder) for folder in covered):
            yield f"--workspace: {hidden} is inside {root}, and readable once it is replaced: move it elsewhere"
    for folder in config.plugins:
        if folder.resolve().is_relative_to(root):
            yield f"--plugins: {folder} is inside the workspace {root}, so commands could change it: move it elsewhere"

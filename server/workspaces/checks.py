"""Check that a workspace exposes no secret of the server, and no system folder, to sandboxed commands."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from toolgate.server.base.errors import UsageError
from toolgate.server.config.load import Config

if TYPE_CHECKING:
    from toolgate.tools.workspace.sandbox.levels import Sandbox

NO_WORKSPACE = ("/", "/tmp", "/var", "/usr", "/opt")  # noqa: S108  # folders below them may be workspaces
SYSTEM_ALONE = ("/proc", "/sys", "/dev", "/etc", "/run", "/boot", "/usr/bin", "/usr/sbin", "/usr/lib")


def hidden_paths(config: Config, state: Path) -> Sequence[Path]:
    """Return the paths that no command may read, even inside a readable folder."""
    named = (config.config_path, config.own_folder, config.logs, *config.list_secret_files())
    return [path.resolve() for path in (state, *named, *config.own_sockets) if path is not None]


def find_unwritable(config: Config, path: Path) -> str | None:
    """Return why sandboxed commands must not be able to write to `path`, or None."""
    real = path.resolve()
    if str(real) in NO_WORKSPACE or any(real.is_relative_to(tree) for tree in SYSTEM_ALONE):
        return f"{path} is a system folder, which commands could change: name another"
    given = {"plugins": config.plugins, "skills": config.skills, "sandbox-paths": config.sandbox_paths}
    for option, folders in given.items():
        for folder in folders:
            own = folder.resolve()
            if own.is_relative_to(real) or real.is_relative_to(own):
                return f"{path} has or is in what commands must not change: --{option} {folder}"
    return None


def check_workspace(config: Config, state: Path, sandbox: "Sandbox") -> None:
    """Raise UsageError where --workspace is a system folder, or contains plugins or secrets of the server."""
    root: Path | None = config.workspace or (None if config.is_remote else Path.cwd())
    if sandbox.level == "none" or root is None:
        return
    for refusal in _refusals(config, state, sandbox, root.resolve()):
        raise UsageError(refusal)


def _refusals(config: Config, state: Path, sandbox: "Sandbox", root: Path) -> Iterator[str]:
    if str(root) in NO_WORKSPACE or any(root.is_relative_to(tree) for tree in SYSTEM_ALONE):
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

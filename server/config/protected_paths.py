"""List the paths that commands must not read or change: the server's own, the administrator's and the system's."""

from collections.abc import Sequence
from pathlib import Path

from toolgate.server.config.load import Config

NO_WORKSPACE = ("/", "/tmp", "/var", "/usr", "/opt")  # noqa: S108  # folders below them may be workspaces
SYSTEM_ALONE = ("/proc", "/sys", "/dev", "/etc", "/run", "/boot", "/usr/bin", "/usr/sbin", "/usr/lib")


def hidden_paths(config: Config, state: Path) -> Sequence[Path]:
    """Return the paths that no command may read, even inside a readable folder."""
    named = (config.config_path, config.own_folder, config.logs, *config.list_secret_files())
    return [path.resolve() for path in (state, *named, *config.own_sockets) if path is not None]


def find_unwritable(config: Config, path: Path) -> str | None:
    """Return why sandboxed commands must not be able to write to `path`, or None."""
    real = path.resolve()
    if is_system_folder(real):
        return f"{path} is a system folder, which commands could change: name another"
    given = {"plugins": config.plugins, "skills": config.skills, "sandbox-paths": config.sandbox_paths}
    for option, folders in given.items():
        for folder in folders:
            own = folder.resolve()
            if own.is_relative_to(real) or real.is_relative_to(own):
                return f"{path} has or is in what commands must not change: --{option} {folder}"
    return None


def is_system_folder(path: Path) -> bool:
    """Return whether commands that could write to this folder, a path without links, could change the system."""
    return str(path) in NO_WORKSPACE or any(path.is_relative_to(tree) for tree in SYSTEM_ALONE)

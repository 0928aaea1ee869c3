"""What must not lie where sandboxed commands can get at it, and where they must not work. Knows the options; changes
nothing. A part of the composition root.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from toolgate.server.config.load import Config
from toolgate.server.policy.sign_in_methods import provider_methods
from toolgate.server.protocol.errors import UsageError

if TYPE_CHECKING:
    from toolgate.tools.sandbox.levels import Sandbox

NO_WORKSPACE = ("/", "/tmp", "/var", "/usr", "/opt")  # noqa: S108  # what is below them may be one
SYSTEM_ALONE = ("/proc", "/sys", "/dev", "/etc", "/run", "/boot", "/usr/bin", "/usr/sbin", "/usr/lib")


def hidden_paths(config: Config, state: Path) -> Sequence[Path]:
    """What no command is to see, though it may lie where commands may look."""
    ours = (config.file, config.clients, config.search_keys, config.logs)
    clients = (getattr(config, method.client_key) for method in provider_methods())
    named = (*ours, *clients, config.metrics_token, config.login_header_secret)
    return [path.resolve() for path in (state, *named) if path is not None]


def check_workspace(config: Config, state: Path, sandbox: "Sandbox") -> None:
    """Raise UsageError where the workspace that was given is what a sandbox keeps away, or holds code that the server
    runs or what it keeps."""
    root: Path | None = config.workspace or (None if config.is_remote else Path.cwd())
    if sandbox.level == "none" or root is None:
        return
    for refusal in _refusals(config, state, sandbox, root.resolve()):
        raise UsageError(refusal)


def _refusals(config: Config, state: Path, sandbox: "Sandbox", root: Path) -> Iterator[str]:
    if str(root) in NO_WORKSPACE or any(root.is_relative_to(tree) for tree in SYSTEM_ALONE):
        yield f"--workspace: {root} is the system's, and sandboxed commands could change it: name a folder"
    if sandbox.uids is not None and root.stat().st_uid == 0:
        yield (
            f"--workspace: {root} belongs to root, and sandboxed commands never run as root: chown it, or say "
            "--sandbox none"
        )
    if sandbox.level == "uid":
        yield (
            f"--workspace: at level uid commands would run as the owner of {root}, with all that is that user's: leave "
            "it out, and each has a folder and a user of its own; or have bubblewrap"
        )
    kept = [folder.resolve() for folder in (state, config.logs) if folder is not None]  # folders, whose cover holds
    for hidden in hidden_paths(config, state):
        if hidden.is_relative_to(root) and not any(hidden.is_relative_to(folder) for folder in kept):
            yield f"--workspace: {hidden} is inside {root}, and comes into sight when it is replaced: move it elsewhere"
    for folder in config.plugins:
        if folder.resolve().is_relative_to(root):
            yield f"--plugins: {folder} is inside the workspace {root}, where sandboxed commands could write it"

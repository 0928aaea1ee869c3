"""Restart a mount in the running servers of the state (`toolgate mount restart`)."""

from toolgate.server.config.load import Config
from toolgate.server.features.mounts.commands.wishes import make_wish
from toolgate.server.features.mounts.control import MountControl


def restart_mount(config: Config, *, name: str) -> int:
    """Have its conversations ended: the next call begins new ones. Returns 1 if no server follows."""
    if not make_wish(MountControl(config.state), "restart", name):
        return 1
    print(f"Restarted {name}")
    return 0

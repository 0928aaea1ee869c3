"""Restart a mount in the running servers of the state (`toolgate mount restart`)."""

import sys
import time

from toolgate.server.base.text import suggest
from toolgate.server.config.load import Config
from toolgate.server.features.mounts.control import MountControl, ServerStatus
from toolgate.server.protocol.errors import UsageError

PATIENCE = 10.0  # seconds for the servers to follow
STEP = 0.1


def restart_mount(config: Config, *, name: str) -> int:
    """Have its conversations ended: the next call begins new ones. Returns 1 if no server follows."""
    control = MountControl(config.state)
    serving = [status for status in control.read_statuses() if name in status.states]
    if not serving:
        known = [each for status in control.read_statuses() for each in status.states]
        if known:
            raise UsageError(f"mount restart: no running server has a mount {name!r}{suggest(name, known)}")
        print("toolgate: mount restart: no server of this state runs with mounts", file=sys.stderr)
        return 1
    stamp = control.wish(name)
    until = time.monotonic() + PATIENCE
    while time.monotonic() < until:
        left = [status for status in control.read_statuses() if not _has_followed(status, name, stamp)]
        if not left:
            print(f"Restarted {name}")
            return 0
        time.sleep(STEP)
    print(f"toolgate: mount restart: the server has not restarted {name} within {PATIENCE:g} s", file=sys.stderr)
    return 1


def _has_followed(status: ServerStatus, name: str, stamp: int) -> bool:
    return name not in status.states or status.restarts.get(name, 0) >= stamp

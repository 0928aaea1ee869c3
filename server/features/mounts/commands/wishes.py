"""Have the running servers of the state do something for a mount, and wait until they have."""

import sys
import time

from toolgate.server.base.errors import UsageError
from toolgate.server.base.text import suggest
from toolgate.server.features.mounts.control import MountControl, Wish

PATIENCE = 10.0  # seconds for the servers to follow
STEP = 0.1


def make_wish(control: MountControl, wish: Wish, name: str) -> list[int]:
    """Return the processes of the servers that have followed; without one the reason is printed. Raises UsageError for
    a mount that none has."""
    statuses = control.read_statuses()
    serving = [status.pid for status in statuses if name in status.states]
    known = [each for status in statuses for each in status.states]
    if known and not serving:
        raise UsageError(f"mount {wish}: no running server has a mount {name!r}{suggest(name, known)}")
    if not serving:
        print(f"toolgate: mount {wish}: no server of this state runs with mounts", file=sys.stderr)
        return []
    return serving if wish_and_wait(control, wish, name) else []


def wish_and_wait(control: MountControl, wish: Wish, name: str) -> bool:
    """Ask all servers of the state, and return whether those that say they have the mount have followed; else that is
    printed. One that has just taken up the mount, or can't write what it says, follows without a word."""
    stamp = control.wish(wish, name)
    until = time.monotonic() + PATIENCE
    while time.monotonic() < until:
        if all(status.has_followed(wish, name, stamp) for status in control.read_statuses()):
            return True
        time.sleep(STEP)
    print(f"toolgate: mount {wish}: the server has not answered within {PATIENCE:g} s", file=sys.stderr)
    return False

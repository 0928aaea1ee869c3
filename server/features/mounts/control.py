"""Tell commands on this machine how the mounts of a running server are, and take their wishes, by files in the state.

    cache/mounts/status/PID     what one server says of its mounts
    cache/mounts/restart/NAME   touched by whoever wants a mount restarted

A server begins them, and removes what it says of itself at its end.
"""

import contextlib
import os
import time
from collections.abc import Mapping
from pathlib import Path

import msgspec

from toolgate.server.features.mounts.mount.mount import MountState

FOLDER = Path("cache/mounts")


class ServerStatus(msgspec.Struct, frozen=True):
    """What one server says. `restarts`: the last wish for each mount that it has followed, as a time of the file."""

    pid: int
    states: Mapping[str, MountState]
    restarts: Mapping[str, int] = {}


class MountControl:
    """The files of the state folder `root`. All of its methods block."""

    def __init__(self, root: Path) -> None:
        self.wishes = root / FOLDER / "restart"
        self._statuses = root / FOLDER / "status"
        self._own = self._statuses / str(os.getpid())
        self._followed: dict[str, int] = {}

    def begin(self) -> None:
        """Take no wish of before the start."""
        self.wishes.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._statuses.mkdir(mode=0o700, exist_ok=True)
        self._followed = self._read_wishes()

    def publish(self, states: Mapping[str, MountState]) -> None:
        """Write how the mounts of this server are."""
        part = self._own.with_suffix(".part")
        part.write_bytes(msgspec.json.encode(ServerStatus(os.getpid(), states, self._followed)))
        part.replace(self._own)

    def take_wishes(self) -> list[str]:
        """Return the mounts that are to be restarted, each once."""
        found = self._read_wishes()
        new = [name for name, stamp in found.items() if self._followed.get(name) != stamp]
        self._followed = found
        return new

    def end(self) -> None:
        self._own.unlink(missing_ok=True)

    def wish(self, name: str) -> int:
        """Ask all servers of the state to restart a mount, and return the time that they will name."""
        self.wishes.mkdir(mode=0o700, parents=True, exist_ok=True)
        file = self.wishes / name
        file.touch(mode=0o600)
        stamp = time.time_ns()
        os.utime(file, ns=(stamp, stamp))
        return file.stat().st_mtime_ns

    def read_statuses(self) -> list[ServerStatus]:
        """Return what the servers say that run on this machine."""
        found: list[ServerStatus] = []
        for file in sorted(self._statuses.glob("[0-9]*")) if self._statuses.is_dir() else ():
            with contextlib.suppress(OSError, msgspec.MsgspecError, UnicodeDecodeError):
                status = msgspec.json.decode(file.read_bytes(), type=ServerStatus)
                os.kill(status.pid, 0)
                found.append(status)
        return found

    def _read_wishes(self) -> dict[str, int]:
        with contextlib.suppress(OSError):
            return {file.name: file.stat().st_mtime_ns for file in self.wishes.iterdir()}
        return {}

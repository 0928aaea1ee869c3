"""Tell commands on this machine how the mounts of a running server are, and take their wishes, by files in the state.

    cache/mounts/status/PID      what one server says of its mounts
    cache/mounts/restart/NAME    touched by whoever wants a mount restarted
    cache/mounts/logs/NAME       touched by whoever wants to read what has happened to it
    cache/mounts/said/PID.NAME   the answer of one server

A server begins them, and removes what it says at its end.
"""

import contextlib
import os
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Literal

import msgspec

from toolgate.server.features.mounts.mount.mount_standing import MountRecord, MountState

FOLDER = Path("cache/mounts")
Wish = Literal["restart", "logs"]
WISHES: tuple[Wish, ...] = ("restart", "logs")


class ServerStatus(msgspec.Struct, frozen=True):
    """What one server says. `restarts` and `logs`: the last wish for each mount that it has followed, as a time of the
    file. `differing`: mounts that other servers on the state have otherwise."""

    pid: int
    states: Mapping[str, MountState]
    restarts: Mapping[str, int] = {}
    logs: Mapping[str, int] = {}
    differing: Sequence[str] = ()

    def has_followed(self, wish: Wish, name: str, stamp: int) -> bool:
        """Return whether a wish of this time is fulfilled, or never can be."""
        followed = self.restarts if wish == "restart" else self.logs
        return name not in self.states or followed.get(name, 0) >= stamp


class MountControl:
    """The files of the state folder `root`. All of its methods block."""

    def __init__(self, root: Path) -> None:
        self._root = root / FOLDER
        self.wishes = [self._folder(wish) for wish in WISHES]
        self._statuses = self._root / "status"
        self._said = self._root / "said"
        self._own = self._statuses / str(os.getpid())
        self._followed: dict[Wish, dict[str, int]] = {}

    def begin(self) -> None:
        """Take no wish of before the start."""
        for folder in (*self.wishes, self._statuses, self._said):
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._followed = {wish: self._read_wishes(wish) for wish in WISHES}

    def publish(self, states: Mapping[str, MountState], differing: Sequence[str] = ()) -> None:
        """Write how the mounts of this server are."""
        followed = self._followed
        status = ServerStatus(os.getpid(), states, followed.get("restart", {}), followed.get("logs", {}), differing)
        _write(self._own, msgspec.json.encode(status))

    def take_wishes(self, wish: Wish) -> list[str]:
        """Return the mounts for which somebody wishes this, each once."""
        found = self._read_wishes(wish)
        before = self._followed.get(wish, {})
        self._followed[wish] = found
        return [name for name, stamp in found.items() if before.get(name) != stamp]

    def answer(self, name: str, record: MountRecord) -> None:
        """Write what has happened to a mount."""
        _write(self._answer_of(os.getpid(), name), msgspec.json.encode(record))

    def end(self) -> None:
        for file in (self._own, *self._said.glob(f"{os.getpid()}.*")):
            file.unlink(missing_ok=True)

    def wish(self, wish: Wish, name: str) -> int:
        """Ask all servers of the state for this, and return the time that they will name."""
        folder = self._folder(wish)
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        file = folder / name
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

    def read_answer(self, pid: int, name: str) -> MountRecord:
        """Return what a server has answered. Raises OSError and msgspec.MsgspecError."""
        return msgspec.json.decode(self._answer_of(pid, name).read_bytes(), type=MountRecord)

    def _folder(self, wish: Wish) -> Path:
        return self._root / wish

    def _answer_of(self, pid: int, name: str) -> Path:
        return self._said / f"{pid}.{name}"

    def _read_wishes(self, wish: Wish) -> dict[str, int]:
        with contextlib.suppress(OSError):
            return {file.name: file.stat().st_mtime_ns for file in self._folder(wish).iterdir()}
        return {}


def _write(file: Path, data: bytes) -> None:
    part = file.with_name(f"{file.name}.part")
    with open(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as opened:
        opened.write(data)
    part.replace(file)

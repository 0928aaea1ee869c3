"""Tell commands on this machine how the mounts of a running server are, and take their wishes, by files in the state.

    cache/mounts/status/PID      what one server says of its mounts
    cache/mounts/restart/NAME    touched by whoever wants a mount restarted
    cache/mounts/logs/NAME       touched by whoever wants to read what has happened to it
    cache/mounts/pins/NAME       touched by whoever has decided what of a mount is served
    cache/mounts/choices/all     touched by a server where a person has switched something off or on
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
from toolgate.tools.api.regular_file import read_regular
from toolgate.tools.api.text.json_text import JsonError, decode_json

FOLDER = Path("cache/mounts")
MAX_SAID = 16 * 2**20  # bytes
Wish = Literal["restart", "logs", "pins", "choices"]
WISHES: tuple[Wish, ...] = ("restart", "logs", "pins", "choices")


class ServerStatus(msgspec.Struct, frozen=True):
    """What one server says. `restarts`, `logs` and `pins`: the last wish for each mount that it has followed, as a time
    of the file. `differing`: mounts that other servers on the state lack, or configure differently. `names`: of each
    mount, what its tools are called here → their own names."""

    pid: int
    began: str  # when the process did: another one may have its number later
    states: Mapping[str, MountState]
    restarts: Mapping[str, int] = {}
    logs: Mapping[str, int] = {}
    differing: Sequence[str] = ()
    names: Mapping[str, Mapping[str, str]] = {}
    pins: Mapping[str, int] = {}

    @property
    def is_alive(self) -> bool:
        """Whether the server runs."""
        return bool(self.began) and self.began == read_began(self.pid)

    def has_followed(self, wish: Wish, name: str, stamp: int) -> bool:
        """Return whether a wish of this time is fulfilled, or never can be."""
        followed = {"restart": self.restarts, "logs": self.logs, "pins": self.pins}.get(wish, {})
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
        self._remove_dead()
        self._followed = {wish: self._read_wishes(wish) for wish in WISHES}

    def publish(
        self,
        states: Mapping[str, MountState],
        differing: Sequence[str] = (),
        names: Mapping[str, Mapping[str, str]] = {},
    ) -> None:
        """Write how the mounts of this server are."""
        restarts, logs, pins = (self._followed.get(wish, {}) for wish in WISHES[:3])
        status = ServerStatus(os.getpid(), read_began(os.getpid()), states, restarts, logs, differing, names, pins)
        _write(self._own, msgspec.json.encode(status))

    def take_wishes(self, wish: Wish) -> list[str]:
        """Return the mounts for which somebody wishes this, each once."""
        found = self._read_wishes(wish)
        before = self._followed.get(wish, {})
        self._followed[wish] = found
        return [name for name, stamp in found.items() if before.get(name) != stamp]

    def _remove_dead(self) -> None:
        """Remove what servers said that were killed."""
        living = {str(status.pid) for status in self.read_statuses()}
        for file in (*self._statuses.glob("*"), *self._said.glob("*")):
            if file.name.partition(".")[0] not in living:
                with contextlib.suppress(OSError):
                    file.unlink()

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
            with contextlib.suppress(OSError, JsonError):
                status = read_status(file)
                if status.is_alive:
                    found.append(status)
        return found

    def read_answer(self, pid: int, name: str) -> MountRecord:
        """Return what a server has answered. Raises OSError and JsonError."""
        return decode_json(read_regular(self._answer_of(pid, name), MAX_SAID), MountRecord)

    def _folder(self, wish: Wish) -> Path:
        return self._root / wish

    def _answer_of(self, pid: int, name: str) -> Path:
        return self._said / f"{pid}.{name}"

    def _read_wishes(self, wish: Wish) -> dict[str, int]:
        with contextlib.suppress(OSError):
            return {file.name: file.stat().st_mtime_ns for file in self._folder(wish).iterdir()}
        return {}


def read_status(file: Path) -> ServerStatus:
    """Raises OSError and JsonError."""
    return decode_json(read_regular(file, MAX_SAID), ServerStatus)


def read_began(pid: int) -> str:
    """Return what no other process of this number has, or "" if none has it."""
    try:
        os.kill(pid, 0)
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except FileNotFoundError:
        return "unknown"  # a system without /proc
    except OSError:
        return ""
    return fields[19] if fields[0] not in "ZX" else ""  # field 22 of proc_pid_stat(5): ticks since the boot


def _write(file: Path, data: bytes) -> None:
    part = file.with_name(f"{file.name}.part")
    with open(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as opened:
        opened.write(data)
    part.replace(file)

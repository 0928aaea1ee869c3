"""The quarters of one principal in a sandbox: its folders and its user, its way out, its control group. Knows nothing
of commands, nor of who the principal is.
"""

import asyncio
import os
import socket
import stat
import subprocess
import time
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Protocol

from toolgate.tools.cgroups import Group
from toolgate.tools.sandbox.levels import Sandbox
from toolgate.tools.sandbox.process import Cell, end
from toolgate.tools.sandbox.users import active, settled
from toolgate.tools.workspace.environment import resources
from toolgate.tools.workspace.idle_sandboxes import Resting
from toolgate.tools.workspace.limits import Limits
from toolgate.tools.workspace.safe_walk import opened
from toolgate.tools.workspace.zygote import Processes

PLACES = "places"  # of the spool: where commands leave word of where they are, and all they may write there


class Outlet(Protocol):
    """A sandbox's way out (tools/gateway/)."""

    async def close(self) -> None: ...


class Sandboxed:
    """`alone`: the folder is this principal's, and in `root.parent` are only such folders.

    `outlet` makes the way out from the listener of a sandbox that has one; `group` its control group, where there are
    such (blocking; raises OSError). `memory`: no group bounds that. `resting` are the server's idle sandboxes.
    """

    def __init__(
        self,
        sandbox: Sandbox,
        root: Path,
        spool: Path,
        *,
        alone: bool,
        outside: Processes,
        outlet: Callable[[socket.socket], Outlet],
        group: Callable[[Limits], Group | None],
        memory: bool,
        resting: Resting,
    ) -> None:
        self.level: str = sandbox.level
        self.limits = sandbox.limits
        self.places: Path | None = spool / PLACES
        self.uid: int | None = None
        self.resources: Mapping[int, int] = resources(sandbox.limits, memory=memory)
        self._make_group = group
        self.outside = outside
        self._sandbox = sandbox
        self._root = root
        self._spool = spool
        self._alone = alone
        self._outlet = outlet
        self._resting = resting
        self._way_out: Outlet | None = None
        self._group: Group | None = None
        self._cell: Cell | None = None
        self._places: tuple[int, int] | None = None  # which folder that is
        self._is_stale = False  # the sandbox there is has another
        self._given: Mapping[str, str] | None = None
        self._environment: Mapping[str, str] | None = None
        self._processes: Processes | None = None
        self._closing: set[asyncio.Future[None]] = set()

    @property
    def processes(self) -> Processes:
        """Those of this sandbox, which begins with the first; `settle` comes before."""
        if self._processes is None:
            self._processes = Processes(self, self._entered, self._left, self._resting)
        return self._processes

    def settle(self) -> None:
        """Give the folders to the user that commands run as. Blocking; raises OSError."""
        if self._cell is not None:
            return
        self.uid = self._user()
        self._furnish()
        self._group = self._make_group(self.limits)
        entrances = [] if self._group is None else self._group.entrances
        places = self._spool / PLACES
        self._cell = self._sandbox.cell(self._root, self._spool, places, self.uid, entrances, alone=self._alone)

    def renew(self) -> None:
        """A sandbox keeps the folders it began with: where they are others now, it ends as soon as nothing runs in it.
        Until then its commands leave no word."""
        if _identity(self._spool / PLACES) != self._places:
            self._furnish()
            self._is_stale = True
        if self._is_stale:
            self.processes.retire()

    def spawn(self, channel: socket.socket, report: socket.socket) -> "subprocess.Popen[bytes]":
        """Begin a sandbox, with the folders as they are now."""
        assert self._cell is not None
        self._furnish()
        self._is_stale = False
        return self._cell.spawn(channel, report)

    def kill(self) -> None:
        if self._cell is not None:
            self._cell.kill()

    def clear(self) -> None:
        """Those who lost their sandbox with its server, and kept it from ending them. Blocking."""
        uids = self._sandbox.uids
        if self._alone and uids is not None and self.uid is not None and self.uid in active():
            end(self.uid, uids[-1])

    def environment(self, given: Mapping[str, str]) -> Mapping[str, str]:
        if self._given is not given or self._environment is None:  # it is the same for each command, and takes a while
            assert self._cell is not None
            self._given, self._environment = given, self._cell.environment(given)
        return self._environment

    def hits(self) -> list[str]:
        if self._group is None:
            return []
        hits, limits = self._group.hits(), self.limits
        told = [f"the limit of {limits.memory:,} bytes of memory was reached, and a process killed"] if hits.oom else []
        if hits.processes:
            told.append(f"the limit of {limits.processes:,} processes was reached, and no more started")
        return told

    async def close(self) -> None:
        """End the sandbox, with all that runs there."""
        if self._processes is not None:
            await self._processes.close()
        if self._closing:
            await asyncio.wait(self._closing)
        if self._group is not None:
            await asyncio.to_thread(self._group.close)

    def _furnish(self) -> None:
        """Make the folders, where they are not there."""
        places = self._spool / PLACES
        self._spool.mkdir(mode=0o700, parents=True, exist_ok=True)
        if places.is_symlink():  # nobody but us makes anything there: it came with a copy that was tampered with
            places.unlink()
        places.mkdir(mode=0o700, exist_ok=True)
        if self.uid is not None:
            os.chown(places, self.uid, self.uid, follow_symlinks=False)
            os.chown(self._spool, -1, self.uid, follow_symlinks=False)
            self._spool.chmod(0o710)
        self._places = _identity(places)

    def _user(self) -> int | None:
        if self._sandbox.uids is None:
            return None
        if not self._alone:
            return self._root.stat().st_uid
        return settled(self._root, self._sandbox.uids)

    def _entered(self, listener: socket.socket) -> None:
        self._way_out = self._outlet(listener)

    def _left(self) -> None:
        way_out, self._way_out = self._way_out, None
        if way_out is not None:
            self._later(way_out.close())
        self._later(asyncio.to_thread(self._clear_places, time.time()))

    def _clear_places(self, before: float) -> None:
        """What commands wrote there is of no use any more. Blocking: they may have written any number of files. Those
        of the next sandbox may come meanwhile: when a file was made nobody can lie about."""
        with suppress(OSError), opened(self._spool / PLACES) as places, os.scandir(places) as entries:
            for entry in entries:
                found = entry.stat(follow_symlinks=False)
                if found.st_ctime < before and not stat.S_ISDIR(found.st_mode):
                    os.unlink(entry.name, dir_fd=places)

    def _later(self, work: Awaitable[None]) -> None:
        closing = asyncio.ensure_future(work)
        self._closing.add(closing)
        closing.add_done_callback(self._closing.discard)


def _identity(folder: Path) -> tuple[int, int] | None:
    """Device and number; None where nothing is."""
    try:
        found = folder.lstat()
    except FileNotFoundError:
        return None
    return found.st_dev, found.st_ino

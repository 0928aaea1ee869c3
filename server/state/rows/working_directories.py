"""Store the working directory of each principal, so that a client without sessions finds it again after a restart.

The directory may be gone by then: the next command notices.
"""

import logging
import os
from functools import partial
from pathlib import Path

from toolgate.server.base.errors import StateError
from toolgate.server.state import flags, tables
from toolgate.server.state.batch import WriteBatch
from toolgate.server.state.store import Store
from toolgate.tools.api.context.services import CallerState

MAX_DIRECTORIES = 10_000  # of one state; those that changed last are kept

log = logging.getLogger(__name__)


class WorkingDirectories:
    """The directories of one server; `workspace` is the one of all principals, or "" where each has its own.

    is_shared: whether other servers use the same state, so that a directory is read again before it is used
    """

    def __init__(self, store: Store, workspace: str, *, is_shared: bool = False) -> None:
        self._store = store
        self._workspace = workspace
        self._is_shared = is_shared
        self._batch = WriteBatch(store)
        self._stored: dict[str, Path] = {}  # the one that changed last is the last

    async def load(self) -> None:
        """Read what an earlier process stored."""
        if self._store.has_flag(flags.PLACES, ""):
            try:
                self._stored = await self._store.transact(self._read, alone="places")
            except StateError as error:
                log.warning("the working directories of before this start can't be read, and are lost: %s", error)

    def get_place(self, principal: str) -> CallerState:
        """Return the principal's place, as it was stored. Call it again only if nothing uses the one before."""
        stored = self._stored.get(principal)
        place = CallerState(cwd=stored, saved_cwd=stored)
        place.save = partial(self._save, principal, place)
        if self._is_shared:
            place.load = partial(self._load, principal, place)
        return place

    async def forget(self, principal: str) -> None:
        """Start the principal at the root of its workspace again."""
        self._stored.pop(principal, None)
        if self._store.has_flag(flags.PLACES, ""):
            await self._batch.add(partial(self._write, principal, None))

    async def _load(self, principal: str, place: CallerState) -> None:
        """Take the directory that another server has stored, unless this one has yet to store its own. Previous
        directories are not stored: the one of the other server is not known."""
        try:
            cwd = await self._store.read(partial(self._read_one, principal))
        except StateError as error:
            log.warning("a working directory is the last one that this server knows: %s", error)
            return
        if place.is_saved and cwd != place.cwd:
            place.cwd, place.previous = cwd, None
            place.note_saved(cwd, None)

    async def _save(self, principal: str, place: CallerState) -> None:
        cwd, previous = place.cwd, place.previous
        if cwd == place.saved_cwd:  # the previous directory lives as long as the process
            place.note_saved(cwd, previous)
            return
        try:
            await self._batch.add(partial(self._write, principal, cwd))
        except StateError as error:
            log.warning("the working directory of %s is not stored, and lost at the next start: %s", principal, error)
        else:
            place.note_saved(cwd, previous)
            self._note(principal, cwd)

    def _note(self, principal: str, cwd: Path | None) -> None:
        self._stored.pop(principal, None)
        if cwd is not None:
            self._stored[principal] = cwd
        while len(self._stored) > MAX_DIRECTORIES:
            del self._stored[next(iter(self._stored))]

    def _write(self, principal: str, cwd: Path | None, connection: "tables.Connection") -> None:
        table, key = tables.place, {"principal": principal, "workspace": self._workspace}
        if cwd is None:
            connection.execute(table.delete().filter_by(**key))
            return
        tables.write_row(connection, table, key, {"cwd": os.fsencode(cwd), "moved_at": self._store.now()})
        self._store.set_flag(flags.PLACES, "", True)

    def _read_one(self, principal: str, connection: "tables.Connection") -> Path | None:
        table = tables.place
        mine = tables.select(table.c.cwd).filter_by(principal=principal, workspace=self._workspace)
        return _parse_path(connection.execute(mine).scalar())

    def _read(self, connection: "tables.Connection") -> dict[str, Path]:
        table = tables.place
        newest = table.select().order_by(table.c.moved_at.desc()).limit(MAX_DIRECTORIES)
        oldest = [row.moved_at for row in connection.execute(newest)][MAX_DIRECTORIES - 1 :]
        connection.execute(table.delete().where(table.c.moved_at < (oldest[0] if oldest else 0.0)))
        mine = table.select().where(table.c.workspace == self._workspace)
        stored = {row.principal: _parse_path(row.cwd) for row in connection.execute(mine)}
        return {name: cwd for name, cwd in stored.items() if cwd is not None}


def _parse_path(cwd: object) -> Path | None:
    """Return the path as it was stored, or None if it is not one."""
    if not isinstance(cwd, bytes) or not cwd.startswith(b"/") or b"\0" in cwd:
        return None
    return Path(os.fsdecode(cwd))

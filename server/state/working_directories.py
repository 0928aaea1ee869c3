"""Where each principal stands, in the state database: a client of the stateless era finds its working directory again
after a restart. Knows nothing of whether the directory is still there: a command that is to run in it finds that out.
"""

import logging
import os
import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from toolgate.server.state import tables
from toolgate.server.state.batch import WriteBatch
from toolgate.server.state.store import StateError, Store
from toolgate.tools.api.context import CallerState

if TYPE_CHECKING:
    from sqlalchemy import Connection

FLAG = "places"  # flag: there are some
MAX_DIRECTORIES = 10_000  # of one state; those that moved last are kept

log = logging.getLogger(__name__)


class WorkingDirectories:
    """Those of one server; `workspace` is the one that all its principals have, "" where each has its own."""

    def __init__(self, store: Store, workspace: str) -> None:
        self._store = store
        self._workspace = workspace
        self._batch = WriteBatch(store)
        self._stood: dict[str, Path] = {}  # when the server began, until they are asked for

    async def load(self) -> None:
        """Read what an earlier process wrote. Raises StateError."""
        if self._store.has_flag(FLAG, ""):
            self._stood = await self._store.transact(self._read)

    def get_place(self, principal: str) -> CallerState:
        """Where the principal stands, to be asked for once."""
        stood = self._stood.pop(principal, None)
        place = CallerState(cwd=stood, saved_cwd=stood)
        place.save = partial(self._save, principal, place)
        return place

    async def forget(self, principal: str) -> None:
        """It begins anew, at the root of its workspace."""
        self._stood.pop(principal, None)
        if self._store.has_flag(FLAG, ""):
            await self._batch.add(partial(self._put, principal, None))

    async def _save(self, principal: str, place: CallerState) -> None:
        cwd = place.cwd
        try:
            await self._batch.add(partial(self._put, principal, cwd))
        except StateError as error:
            log.warning("where %s stands is forgotten at the next start: %s", principal, error)
        else:
            place.saved_cwd = cwd

    def _put(self, principal: str, cwd: Path | None, connection: "Connection") -> None:
        of = tables.place
        connection.execute(of.delete().where(of.c.principal == principal, of.c.workspace == self._workspace))
        if cwd is not None:
            row = {"principal": principal, "workspace": self._workspace, "cwd": os.fsencode(cwd)}
            connection.execute(of.insert().values(row | {"moved_at": time.time()}))
            self._store.set_flag(FLAG, "", True)

    def _read(self, connection: "Connection") -> dict[str, Path]:
        of = tables.place
        last = of.select().order_by(of.c.moved_at.desc()).limit(MAX_DIRECTORIES)
        oldest = [row.moved_at for row in connection.execute(last)][MAX_DIRECTORIES - 1 :]
        connection.execute(of.delete().where(of.c.moved_at < (oldest[0] if oldest else 0.0)))
        mine = of.select().where(of.c.workspace == self._workspace)
        stood = {row.principal: row.cwd for row in connection.execute(mine)}
        return {principal: Path(os.fsdecode(cwd)) for principal, cwd in stood.items() if _is_one(cwd)}


def _is_one(cwd: object) -> bool:
    return isinstance(cwd, bytes) and cwd.startswith(b"/") and b"\0" not in cwd

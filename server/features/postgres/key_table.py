"""Store the sealing keys of all servers on one PostgreSQL there, sealed with the secret of --secret.

A process reads them at its start and every few seconds, so a new key seals only when all processes have it.
"""

import asyncio
import base64
import logging
import os
from collections.abc import Callable, Hashable, Mapping
from typing import Any

import msgspec

from toolgate.server.base.errors import StateError
from toolgate.server.state import tables
from toolgate.server.state.keys import file as key_file
from toolgate.server.state.keys.sealed_state import FixedKey, Sealer, SealError
from toolgate.server.state.store import Store

NAMES = ("audit-chains", "event-cursor", "event-secrets", "mount-secrets", "questions", "request-state", "signing")
LOOK = 5.0  # seconds between two reads
ANNOUNCE = 2 * LOOK  # seconds from the making of a key to its first use
PURPOSE = "sealing key"

log = logging.getLogger(__name__)


class StoredKey(msgspec.Struct, frozen=True):
    """A key as its row has it. Times are in seconds since the epoch."""

    id: str
    name: str
    key: bytes
    begins_at: float  # when it seals
    ends_at: float | None  # until when it is valid for reading; null for the present one


class KeyTable:
    """The keys in the database of `store`, as of the last `load`. `secret`: 32 bytes that all its servers have."""

    def __init__(self, store: Store, secret: bytes, now: Callable[[], float] | None = None) -> None:
        self._store = store
        self._sealer = Sealer(FixedKey(secret), None)
        self._now = now or store.now
        self._keys: tuple[StoredKey, ...] = ()

    def find(self, name: str) -> "TableKey":
        return TableKey(self, name)

    async def load(self, *, signs_in: bool = False) -> None:
        await self._store.transact(self._settle, alone="keys")

    async def check(self) -> None:
        await self._store.read(self.read)

    async def follow(self) -> None:
        while True:
            await asyncio.sleep(LOOK)
            try:
                await self.load()
            except StateError as error:
                log.warning("the sealing keys can't be read, and stay as they are: %s", error)

    async def rotate(self, name: str, grace: float, *, at_once: bool = False) -> None:
        def change(connection: "tables.Connection") -> None:
            now = self._now()
            begins_at = now if at_once or not grace else now + ANNOUNCE
            table = tables.sealing_key
            if grace:
                present = (table.c.name == name) & table.c.ends_at.is_(None)
                connection.execute(table.update().where(present).values(ends_at=begins_at + grace))
            else:
                connection.execute(table.delete().where(table.c.name == name))
            self._add(connection, name, begins_at)
            self.read(connection)

        await self._store.transact(change, alone="keys")

    async def remove_previous(self, name: str) -> None:
        def change(connection: "tables.Connection") -> None:
            table = tables.sealing_key
            connection.execute(table.delete().where(table.c.name == name, table.c.ends_at.is_not(None)))
            self.read(connection)

        await self._store.transact(change, alone="keys")

    def read(self, connection: "tables.Connection") -> None:
        """Read all keys inside a transaction. Raises StateError."""
        self._keys = self._open_all(connection)

    def _settle(self, connection: "tables.Connection") -> None:
        """Remove the keys that have ended, make those that are missing, and read all."""
        table = tables.sealing_key
        connection.execute(table.delete().where(table.c.ends_at <= self._now()))
        for name in sorted(set(NAMES).difference(key.name for key in self._open_all(connection))):
            self._add(connection, name, self._now())
        self.read(connection)

    def to_files(self, connection: "tables.Connection") -> dict[str, bytes]:
        """Return name and content of the files that a folder with these keys has. Raises StateError."""
        return {
            key.name if key.ends_at is None else key_file.previous_name(key.name, key.ends_at): key.key
            for key in self._open_all(connection)
        }

    def from_files(self, connection: "tables.Connection", files: Mapping[str, bytes]) -> None:
        """Replace all keys by those in files of these names."""
        connection.execute(tables.sealing_key.delete())
        for file, key in files.items():
            name, ends_at = key_file.parse_name(file)
            self._add(connection, name, self._now(), key, ends_at)

    def list_keys(self, name: str) -> list[StoredKey]:
        """Return the keys of that name, the one that seals first. Raises StateError before `load`."""
        now = self._now()
        keys = [key for key in self._keys if key.name == name and (key.ends_at is None or now < key.ends_at)]
        keys.sort(key=lambda key: (key.begins_at <= now, key.ends_at is None, key.begins_at), reverse=True)
        if not keys:
            raise StateError(f"the key {name!r} was not read from PostgreSQL yet: try again")
        return keys

    def _open_all(self, connection: "tables.Connection") -> tuple[StoredKey, ...]:
        return tuple(self._open(row) for row in connection.execute(tables.sealing_key.select()))

    def _open(self, row: Any) -> StoredKey:
        try:
            key = base64.b64decode(self._sealer.unseal(row.sealed, PURPOSE, [row.id, row.name]))
        except SealError:
            raise StateError(
                "the keys in PostgreSQL are sealed with another secret: give all servers on it the same --secret"
            ) from None
        return StoredKey(row.id, row.name, key, row.begins_at, row.ends_at)

    def _add(
        self,
        connection: "tables.Connection",
        name: str,
        begins_at: float,
        key: bytes | None = None,
        ends_at: float | None = None,
    ) -> None:
        id, raw = os.urandom(8).hex(), os.urandom(key_file.SIZE) if key is None else key
        sealed = self._sealer.seal(base64.b64encode(raw).decode(), PURPOSE, [id, name])
        row = {"id": id, "name": name, "sealed": sealed, "begins_at": begins_at, "ends_at": ends_at}
        connection.execute(tables.sealing_key.insert().values(row))


class TableKey:
    """The `SealingKey` of one name in a table."""

    def __init__(self, table: KeyTable, name: str) -> None:
        self._table = table
        self._name = name

    def mark(self) -> Hashable:
        return tuple(key.id for key in self._table.list_keys(self._name))

    def read(self) -> tuple[bytes, list[tuple[bytes, float]]]:
        present, *others = self._table.list_keys(self._name)
        return present.key, [(key.key, float("inf") if key.ends_at is None else key.ends_at) for key in others]

    def refresh(self, connection: "tables.Connection") -> None:
        self._table.read(connection)

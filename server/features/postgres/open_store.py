"""Open the store in PostgreSQL, and the keys of its servers."""

from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

from toolgate.server.base.errors import StateError
from toolgate.server.features.postgres.database_url import DatabaseUrl
from toolgate.server.state import tables
from toolgate.server.state.keys.sealing_keys import KeyFolder, SealingKeys
from toolgate.server.state.store import Store

if TYPE_CHECKING:
    from toolgate.server.features.postgres.database.store import PostgresStore

TRANSACTION = 30.0  # seconds: the network may have lost PostgreSQL
SEALED = "the keys in PostgreSQL are sealed: give the --secret of its servers"


def open_store(
    folder: Path, url: DatabaseUrl, *, upgrades: bool = True, within: float = TRANSACTION
) -> "PostgresStore":
    """Return the store in PostgreSQL.

    folder: of the server's other files
    upgrades: False refuses a database of an older version
    within: seconds for a transaction

    Raises StateError where what PostgreSQL takes is not installed.
    """
    import_driver()
    from toolgate.server.features.postgres.database.store import PostgresStore  # start-up, as above

    return PostgresStore(folder, url, upgrades=upgrades, within=within)


def import_driver() -> None:
    """Import the driver, and with it SQLAlchemy. Raises StateError where it is not installed."""
    try:
        import_module("toolgate.server.features.postgres.database.driver")
    except ImportError as error:
        from toolgate.tools.api.installation import name_extra  # start-up: seldom needed

        raise StateError(f"--database needs {error.name}: {name_extra('replicas')}") from error


def open_keys(store: Store, secret: bytes | None) -> SealingKeys:
    """Return the sealing keys in the database, where `secret` seals them, or else in the folder of the store."""
    if secret is None:
        return UnsealedKeys(store)
    from toolgate.server.features.postgres.key_table import KeyTable  # start-up

    return KeyTable(store, secret)


def has_keys(connection: "tables.Connection") -> bool:
    """Return whether there are keys in the database."""
    return connection.execute(tables.sealing_key.select().limit(1)).first() is not None


class UnsealedKeys(KeyFolder):
    """Keys in the folder of a server on `store`. It refuses to read them where other servers have sealed theirs."""

    def __init__(self, store: Store) -> None:
        super().__init__(store.folder / "keys")
        self._store = store

    async def load(self, *, signs_in: bool = False) -> None:
        await super().load(signs_in=signs_in)
        if await self._store.read(has_keys):
            raise StateError(SEALED)

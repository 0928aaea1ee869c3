"""Open the store and the keys that the options name."""

from importlib import import_module
from pathlib import Path

from toolgate.server.state.database_url import DatabaseUrl
from toolgate.server.state.errors import StateError
from toolgate.server.state.keys.sealing_keys import KeyFolder, SealingKeys
from toolgate.server.state.sqlite.store import SqliteStore
from toolgate.server.state.store import Store

TRANSACTION = 30.0  # seconds: the network may have lost PostgreSQL


def open_store(
    folder: Path, database: DatabaseUrl | None = None, *, upgrades: bool = True, within: float = TRANSACTION
) -> Store:
    """Return the store in PostgreSQL, or else in the folder.

    upgrades: False refuses a database of an older version
    within: seconds for a transaction in PostgreSQL

    Raises StateError where what PostgreSQL takes is not installed.
    """
    if database is None:
        return SqliteStore(folder, upgrades=upgrades)
    import_postgres()
    from toolgate.server.state.postgres_store import PostgresStore  # start-up, as above

    return PostgresStore(folder, database, upgrades=upgrades, within=within)


def open_keys(store: Store, secret: bytes | None) -> SealingKeys:
    """Return the sealing keys in the database, where `secret` seals them, or else in the folder of the store."""
    if secret is None:
        return KeyFolder(store.folder / "keys", None if isinstance(store, SqliteStore) else store)
    from toolgate.server.state.keys.table import KeyTable  # start-up

    return KeyTable(store, secret)


def import_postgres() -> None:
    """Import the driver, and with it SQLAlchemy. Raises StateError where it is not installed."""
    try:
        import_module("toolgate.server.state.postgres")
    except ImportError as error:
        from toolgate.tools.installation import name_extra  # start-up: seldom needed

        raise StateError(f"--database needs {error.name}: {name_extra('replicas')}") from error

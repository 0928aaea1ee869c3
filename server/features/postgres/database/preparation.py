"""Create and upgrade the tables in PostgreSQL.

Both are one transaction, while no other one runs: of several servers that start at once one does it.
"""

import logging

from sqlalchemy import Connection, inspect

from toolgate.server.base.errors import StateError
from toolgate.server.features.postgres.database import driver
from toolgate.server.state import migrate, tables
from toolgate.server.state.errors import newer_state_error, older_state_error, upgrade_due_error

WITHIN = "60s"  # for another server's upgrade
OPTION = "--database"
OTHERS = (
    "FROM pg_stat_activity WHERE datname = current_database() AND usename = current_user "
    f"AND application_name = '{driver.PROGRAM}' AND pid <> pg_backend_pid()"
)

log = logging.getLogger(__name__)


def prepare_schema(connection: Connection, *, upgrades: bool) -> bool:
    """Create the tables, or upgrade those of an older version. Return whether servers of that version can't use them.

    Raises StateError.
    """
    connection.exec_driver_sql(f"SET LOCAL lock_timeout = '{WITHIN}'")
    connection.exec_driver_sql("SET LOCAL statement_timeout = 0")
    connection.execute(driver.lock_statement(driver.EVERYTHING))
    if not inspect(connection).has_table(tables.schema_version.name):
        if not upgrades:
            raise StateError(
                "the state database (PostgreSQL) has no tables yet: the first start of a server makes them"
            )
        migrate.create_tables(connection)  # fails where another program has such a table
        return False
    version, compatible_since = migrate.read_versions(connection)
    check_version(version, compatible_since)
    if version >= tables.VERSION:
        return False
    if not upgrades:
        raise upgrade_due_error(version, tables.VERSION, "the state database (PostgreSQL)")
    try:
        migrate.run_migrations(connection, version)
    except Exception as error:
        log.exception("can't upgrade PostgreSQL from version %d to %d; it is unchanged", version, tables.VERSION)
        raise StateError(
            f"the state database (PostgreSQL) can't be upgraded from version {version} to {tables.VERSION}; it is "
            "unchanged. The server's log says why"
        ) from error
    log.warning("PostgreSQL is upgraded from version %d to %d", version, tables.VERSION)
    return version < tables.COMPATIBLE_SINCE


def check_version(version: int, compatible_since: int) -> None:
    """Raise StateVersionError for tables that this version can't use or upgrade."""
    if compatible_since > tables.VERSION:
        raise newer_state_error(version, OPTION)
    if version < tables.OLDEST:
        raise older_state_error(version, OPTION)


def end_other_connections(connection: Connection) -> None:
    """Have all other servers connect again: they find that the tables are newer than they know."""
    connection.exec_driver_sql(f"SELECT pg_terminate_backend(pid) {OTHERS}")


def is_in_use(connection: Connection) -> bool:
    """Return whether other processes use the database."""
    return connection.exec_driver_sql(f"SELECT 1 {OTHERS} LIMIT 1").first() is not None

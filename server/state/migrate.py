"""Create the tables of the state database, and migrate those of an older version by Alembic.

Alembic costs a second to import, so only an upgrade imports it.
"""

import functools
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from toolgate.server.state import tables
from toolgate.server.state.tables import COMPATIBLE_SINCE, VERSION

if TYPE_CHECKING:
    from sqlalchemy import Connection

MIGRATIONS = Path(__file__).parent / "migrations"
REVISIONS = (  # Alembic's own table, to the letter
    "CREATE TABLE alembic_version (\n\tversion_num VARCHAR(32) NOT NULL, \n\t"
    "CONSTRAINT alembic_version_pkc PRIMARY KEY (version_num)\n)"
)
VERSIONS = "SELECT version, compatible_since FROM schema_version"


def format_revision(version: int) -> str:
    """Return Alembic's name of the migration to a version."""
    return f"{version:04}"


def create_tables(connection: "Connection") -> None:
    """Create the tables in an empty database, and mark it as being of this version, for Toolgate and for Alembic."""
    for statement in compile_tables(f"{connection.dialect.name}.{connection.dialect.driver}"):
        connection.exec_driver_sql(statement)
    connection.exec_driver_sql(REVISIONS)
    connection.exec_driver_sql(f"INSERT INTO alembic_version VALUES ('{format_revision(VERSION)}')")  # noqa: S608
    _write_version(connection)


@functools.cache
def compile_tables(dialect: str) -> Sequence[str]:
    """Return the statements that create the tables, for `sqlite.pysqlite` for example. To compile them takes 40 ms."""
    from sqlalchemy.dialects import registry
    from sqlalchemy.engine.mock import MockConnection

    statements: list[str] = []
    target = registry.load(dialect)()
    listing = MockConnection(target, lambda table, *_, **__: statements.append(str(table.compile(dialect=target))))
    tables.metadata.create_all(listing, checkfirst=False)
    return statements


def read_versions(connection: "Connection") -> tuple[int, int]:
    """Return the version of the tables, and the first version that can use them."""
    version, compatible_since = connection.exec_driver_sql(VERSIONS).one()
    return version, compatible_since


def _write_version(connection: "Connection") -> None:
    table = tables.schema_version
    connection.execute(table.delete())
    connection.execute(table.insert().values(version=VERSION, compatible_since=COMPATIBLE_SINCE))
    if connection.dialect.name == "sqlite":  # where each transaction looks at it
        connection.exec_driver_sql(f"PRAGMA user_version = {VERSION}")


def run_migrations(connection: "Connection", version: int) -> None:
    """Migrate the tables from `version`, whatever Alembic's table has, to this one."""
    from alembic import command
    from alembic.config import Config

    config = Config()
    config.set_main_option("script_location", str(MIGRATIONS).replace("%", "%%"))  # "%" begins an interpolation
    config.attributes["connection"] = connection
    command.stamp(config, format_revision(version), purge=True)
    command.upgrade(config, "head")
    _write_version(connection)

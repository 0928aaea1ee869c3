"""Describe a PostgreSQL and its tables to `toolgate doctor`. Nothing is changed."""

import time
from collections.abc import Callable
from typing import Any

import msgspec

from toolgate.server.base.errors import StateError
from toolgate.server.features.postgres.database import clock as database_clock
from toolgate.server.features.postgres.database import driver, replica_lock
from toolgate.server.features.postgres.database.preparation import check_version
from toolgate.server.features.postgres.database_url import DatabaseUrl
from toolgate.server.state import migrate

FACTS = f"""
SELECT split_part(current_setting('server_version'), ' ', 1) AS version,
current_setting('server_version_num')::int / 10000 AS major,
coalesce((SELECT ssl FROM pg_stat_ssl WHERE pid = pg_backend_pid()), false) AS is_encrypted,
current_setting('max_connections')::int - current_setting('superuser_reserved_connections')::int AS most,
(SELECT coalesce(sum(numbackends), 0)::int FROM pg_stat_database) AS used,
(SELECT count(*) FILTER (WHERE application_name LIKE '{driver.PROGRAM}%') FROM pg_stat_activity) AS own,
(SELECT count(*) FILTER (WHERE application_name = '{replica_lock.APPLICATION}') FROM pg_stat_activity
 WHERE datname = current_database()) AS servers,
(SELECT datconnlimit FROM pg_database WHERE datname = current_database()) AS database_limit,
(SELECT rolconnlimit FROM pg_roles WHERE rolname = current_user) AS user_limit
"""  # noqa: S608  # our own names


class DatabaseDescription(msgspec.Struct, frozen=True):
    """A PostgreSQL, as it says itself. `tables` is the version of the tables, None where there are none.

    connections: how many the servers may have together, beside those of other programs
    servers: servers with --redis that run on this database
    """

    version: str
    major: int
    is_encrypted: bool
    tables: int | None
    connections: int
    servers: int


async def describe_database(url: DatabaseUrl) -> DatabaseDescription:
    """Return what PostgreSQL says. Raises StateError, and StateVersionError for tables that this version can't use."""

    async def read(raw: Any) -> tuple[Any, Any]:
        found = await raw.fetchval("SELECT to_regclass('schema_version')")
        return await raw.fetchrow(FACTS), None if found is None else await raw.fetchrow(migrate.VERSIONS)

    facts, versions = await _ask(url, read)
    if versions is not None:
        check_version(*versions)
    own_limits = [limit for limit in (facts["database_limit"], facts["user_limit"]) if limit >= 0]
    return DatabaseDescription(
        version=str(facts["version"]),
        major=int(facts["major"]),
        is_encrypted=bool(facts["is_encrypted"]),
        tables=None if versions is None else int(versions[0]),
        connections=max(0, min(facts["most"] - (facts["used"] - facts["own"]), *own_limits, facts["most"])),
        servers=int(facts["servers"]),
    )


async def read_clock(url: DatabaseUrl, now: Callable[[], float] = time.time) -> tuple[float, float, float]:
    """Return the time of PostgreSQL, between two of this machine. Raises StateError."""

    async def read(raw: Any) -> tuple[float, float, float]:
        before = now()
        clock = await raw.fetchval(database_clock.NOW)
        return before, float(clock), now()

    found: tuple[float, float, float] = await _ask(url, read)
    return found


async def _ask(url: DatabaseUrl, read: Callable[[Any], Any]) -> Any:
    try:
        raw = await driver.connect(url)
        try:
            return await read(raw)
        finally:
            await raw.close()
    except driver.CONNECT_ERRORS as error:
        raise StateError(f"the state database (PostgreSQL) {driver.describe_error(error)}") from error

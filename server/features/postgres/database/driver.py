"""Connect to PostgreSQL by asyncpg, and describe its errors. Nothing imports it without --database."""

import contextlib
from collections.abc import Awaitable, Callable
from hashlib import blake2b
from typing import Any

import asyncpg  # pyright: ignore[reportMissingTypeStubs]  # it has none
from sqlalchemy import TextClause as TextClause
from sqlalchemy import event, text
from sqlalchemy.exc import DisconnectionError, SQLAlchemyError
from sqlalchemy.exc import TimeoutError as PoolTimeoutError
from sqlalchemy.ext.asyncio import AsyncConnection as AsyncConnection
from sqlalchemy.ext.asyncio import AsyncEngine as AsyncEngine
from sqlalchemy.ext.asyncio import create_async_engine
from sqlalchemy.util import await_only as await_only

from toolgate.server.features.postgres.database_url import DatabaseUrl

PROGRAM = "toolgate"  # as pg_stat_activity shows it
CONNECTIONS = 8  # of one process at most
WAIT = 10.0  # seconds for one of them
CONNECT = 5  # seconds to connect
SETTINGS = {
    "application_name": PROGRAM,
    "lock_timeout": "2s",  # as long as SQLite waits for another process
    "statement_timeout": "10s",
    "idle_in_transaction_session_timeout": "5s",  # a frozen process would hold its locks
    "client_encoding": "UTF8",
}
ABANDONED = """
SELECT set_config(name, value, false) FROM pg_settings JOIN (VALUES
  ('client_connection_check_interval', '1s'),  -- a statement ends after its client has gone; since PostgreSQL 14
  ('tcp_keepalives_idle', '5s'), ('tcp_keepalives_interval', '2s'), ('tcp_keepalives_count', '3'),
  ('tcp_user_timeout', '10s')
) AS wanted (name, value) USING (name)
"""
HELD_LOCKS = """
SELECT (classid::bigint << 32) | objid::bigint AS number FROM pg_locks
WHERE locktype = 'advisory' AND granted AND objsubid = 1
AND database = (SELECT oid FROM pg_database WHERE datname = current_database())
"""
ERRORS = (  # the fourth: PostgreSQL ended the connection while it was idle
    SQLAlchemyError,
    asyncpg.PostgresError,
    asyncpg.InterfaceError,
    asyncpg.InternalClientError,
    ConnectionError,
    TimeoutError,
)
CONNECT_ERRORS = (*ERRORS, OSError)  # of name resolution and TLS
EVERYTHING = "everything"
BUSY = "is busy: try again"
UNREACHABLE = "can't be reached"
PARAMETERS = "does not take the parameters of --database: sslmode=verify-full needs sslrootcert=FILE"
# A code, or how it begins → the text. https://www.postgresql.org/docs/current/errcodes-appendix.html
CAUSES = {
    "08": UNREACHABLE,
    "22": "refused a value",
    "25006": "is read-only: name the one that can be written to",
    "28": "refuses the user or the password of --database",
    "3D": "does not exist: create it first",
    "40": BUSY,  # serialization and deadlocks
    "42P07": "has tables of another program: name an empty one",
    "42501": "refuses what its user may not do: make that user its owner",
    "53100": "can't grow, the disk is full: free some space",
    "53300": "has no connection left: raise its max_connections",
    "55P03": BUSY,
    "57014": BUSY,
    "57P": "is starting or stopping: try again",
    "XX": "is damaged: see its own log",
}


async def connect(url: DatabaseUrl) -> Any:
    """Return a connection of asyncpg."""
    return await asyncpg.connect(url.secret, timeout=CONNECT, server_settings=SETTINGS)


async def notice_end(connection: Any) -> None:
    """Have PostgreSQL notice within seconds that a connection of the driver has ended, also beyond a lost network."""
    with contextlib.suppress(asyncpg.PostgresError):  # its platform lacks one of them: the other limits hold
        await connection.execute(ABANDONED)


def open_engine(connect: Callable[[], Awaitable[Any]]) -> AsyncEngine:
    """Return an engine with a pool of what `connect` returns."""
    engine = create_async_engine(
        "postgresql+asyncpg://",
        async_creator=connect,
        pool_size=CONNECTIONS,
        max_overflow=0,
        pool_timeout=WAIT,
        hide_parameters=True,  # the rows have secrets, and errors are logged
    )
    event.listen(engine.sync_engine, "checkout", _refuse_closed)
    return engine


async def release(connection: AsyncConnection) -> None:
    """Give a connection back to its pool, and roll back what is not committed. One that ended before is dropped."""
    try:
        await connection.close()
    except CONNECT_ERRORS:  # of the rollback, which noticed the end
        await connection.close()


def _refuse_closed(connection: Any, _record: object, _proxy: object) -> None:
    """Have the pool connect again in place of a connection that the server ended. It costs no round trip."""
    if connection.driver_connection.is_closed():
        raise DisconnectionError


def lock_statement(name: str | None, seconds: float | None = None) -> TextClause:
    """Return the statement that waits for the locks of a transaction, which ends with them.

    All but "everything" share that one, and have their own. Each later statement of the transaction may last `seconds`.
    """
    everything = f"({lock_number(EVERYTHING)})"
    values: dict[str, int | str] = {}
    if name == EVERYTHING:
        calls = [f"pg_advisory_xact_lock{everything}"]
    else:
        calls = [f"pg_advisory_xact_lock_shared{everything}"]
        if name is not None:
            calls.append("pg_advisory_xact_lock(:name)")
            values["name"] = lock_number(name)
    if seconds is not None:
        calls.append("set_config('statement_timeout', :milliseconds, true)")
        values["milliseconds"] = str(max(1, round(seconds * 1000)))
    return text(f"SELECT {', '.join(calls)}").bindparams(**values)


async def fetch_held_locks(connection: Any) -> set[int]:
    """Return the numbers of the advisory locks that are held in the database. `connection` is the driver's."""
    return {row["number"] for row in await connection.fetch(HELD_LOCKS)}


def lock_number(name: str) -> int:
    """Return 64 bits for the name, the same in all processes."""
    digest = blake2b(name.encode("utf-8", "surrogatepass"), digest_size=8, person=PROGRAM.encode())
    return int.from_bytes(digest.digest(), "big", signed=True)


def error_code(error: BaseException) -> str:
    """Return the SQLSTATE of the error, or ""."""
    return str(getattr(getattr(error, "orig", None) or error, "sqlstate", "") or "")


def is_unreachable(error: BaseException) -> bool:
    """Return whether there is no connection, and there may be one in a moment."""
    return describe_error(error) in (UNREACHABLE, CAUSES["57P"])


def describe_error(error: BaseException) -> str:
    """Return what went wrong, as the rest of a sentence about the database."""
    if isinstance(error, PoolTimeoutError):
        return BUSY
    if isinstance(error, asyncpg.ClientConfigurationError):
        return PARAMETERS
    code = error_code(error)
    found = next((text for start, text in CAUSES.items() if code.startswith(start)), None)
    if found is not None:
        return found
    lost = isinstance(error, OSError) or getattr(error, "connection_invalidated", False)
    return UNREACHABLE if lost else "refused the work"

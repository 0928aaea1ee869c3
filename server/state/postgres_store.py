"""Run transactions on PostgreSQL.

A transaction sees what others have committed (READ COMMITTED), and holds an advisory lock for what it needs alone. A
read sees one moment (REPEATABLE READ). Their functions are synchronous: SQLAlchemy runs them in greenlets of the event
loop, so they wait for nothing but the database.
"""

import asyncio
import contextlib
import logging
import time
from collections.abc import Awaitable, Callable, Coroutine
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar
from weakref import WeakValueDictionary

from toolgate.server.state import migrate, postgres, postgres_schema
from toolgate.server.state.database_clock import DatabaseClock
from toolgate.server.state.database_url import DatabaseUrl
from toolgate.server.state.errors import StateError
from toolgate.server.state.postgres_processes import PostgresProcesses
from toolgate.server.state.store import Subject

if TYPE_CHECKING:
    from sqlalchemy import Connection

BUSY = 2.0  # seconds to wait for a database that can't be reached: it may be restarting
PAUSE = 0.1  # seconds between two tries
CLOSE_WITHIN = 0.3  # seconds for running transactions when the store is closed
UNCHANGED = "nothing was changed"
UNKNOWN = "it is not known whether this was stored"

T = TypeVar("T")

log = logging.getLogger(__name__)


class PostgresStore:
    """The database at `url`, whose connections come back by themselves. `folder` has the server's other files.

    There are no flags: each question that a flag would answer reads the database. Without `upgrades` a database of an
    older version is refused. A transaction has `within` seconds.
    """

    def __init__(
        self,
        folder: Path,
        url: DatabaseUrl,
        *,
        upgrades: bool = True,
        within: float = 30.0,
        clock: DatabaseClock | None = None,
    ) -> None:
        self.folder = folder
        self.url = url
        self._upgrades = upgrades
        self._within = within
        self._engine = postgres.open_engine(self._connect)
        self._snapshots = self._engine.execution_options(isolation_level="REPEATABLE READ", postgresql_readonly=True)
        self._clock = clock or DatabaseClock()
        self._opening = asyncio.Lock()
        self._is_open = False
        self._turns: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        self._running: set[asyncio.Task[Any]] = set()
        self._closed = False

    @property
    def place(self) -> str:
        return str(self.url)

    def now(self) -> float:
        """Return the database's time, as it was measured in the last minute in which it was used."""
        return self._clock.now()

    async def read(self, function: "Callable[[Connection], T]") -> T:
        return await self._start(self._read(function))

    async def transact(
        self, function: "Callable[[Connection], T]", *, alone: Subject | tuple[Subject, str] | None = "everything"
    ) -> T:
        """Run `function` with the locks of `alone`. A cancelled caller's transaction runs to its end."""
        name = "\0".join(alone) if isinstance(alone, tuple) else alone
        return await self._start(self._take_turn(function, name))

    def try_write(self, write: "Callable[[Connection], None]", connection: "Connection") -> Exception | None:
        try:
            with connection.begin_nested():
                write(connection)
        except Exception as error:
            if connection.invalidated:  # the writes before are lost too
                raise
            return self._to_state_error(error)
        return None

    async def prepare(self) -> None:
        await self.read(lambda _: None)

    def set_flag(self, kind: str, key: str, on: bool) -> None:
        pass

    def has_flag(self, kind: str, key: str) -> bool:
        return True

    async def clear_flag_unless(
        self,
        kind: str,
        key: str,
        needed: "Callable[[Connection], bool]",
        *,
        alone: Subject | tuple[Subject, str] = "everything",
    ) -> None:
        pass

    def is_empty(self) -> bool:
        return False

    def count_transactions(self) -> tuple[int, int]:
        """Return how many transactions have a connection, and how many wait for one or for an equal transaction."""
        running: int = self._engine.pool.checkedout()  # type: ignore[attr-defined]  # a queue's
        return running, max(0, len(self._running) - running)

    def open_processes(self) -> PostgresProcesses:
        return PostgresProcesses(self.url)

    async def aclose(self) -> None:
        self._closed = True
        if self._running:
            _, late = await asyncio.wait(self._running, timeout=CLOSE_WITHIN)
            for task in late:
                task.cancel()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(CLOSE_WITHIN):
                await self._engine.dispose()

    async def _start(self, work: Coroutine[Any, Any, T]) -> T:
        """Run the transaction in a task of its own, which the caller's cancellation does not reach."""
        if self._closed:
            work.close()
            raise StateError("the server is shutting down: its state is closed")
        task = asyncio.create_task(work, name="transaction")
        self._running.add(task)
        task.add_done_callback(self._end)
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            if task.cancelled():  # by `aclose`
                raise StateError("the server shut down before this was stored") from None
            raise

    def _end(self, task: "asyncio.Task[Any]") -> None:
        self._running.discard(task)
        if not task.cancelled():
            task.exception()  # its caller may have been cancelled, and nobody else looks at it

    async def _read(self, function: "Callable[[Connection], T]") -> T:
        """Read again where the connection was lost: a read changes nothing."""
        until = time.monotonic() + BUSY
        while True:
            try:
                return await self._run(function, self._snapshots, None)
            except StateError as error:
                lost = error.__cause__ is not None and postgres.is_unreachable(error.__cause__)
                if self._closed or time.monotonic() > until or not lost:
                    raise

    async def _take_turn(self, function: "Callable[[Connection], T]", name: str | None) -> T:
        """Wait for transactions of this process with an equal name, so that they don't wait with a connection each."""
        locks = postgres.lock_statement(name)
        if name is None:
            return await self._run(function, self._engine, locks)
        async with self._turns.setdefault(name, asyncio.Lock()):
            return await self._run(function, self._engine, locks)

    async def _run(
        self, function: "Callable[[Connection], T]", engine: postgres.AsyncEngine, locks: postgres.TextClause | None
    ) -> T:
        connection = await self._begin(engine, locks)
        try:
            async with asyncio.timeout(self._within):
                result = await self._translate(connection.run_sync(function), UNCHANGED)
                await self._translate(connection.commit(), UNKNOWN)
                return result
        except TimeoutError as error:
            raise self._to_state_error(error, UNKNOWN) from error
        finally:
            await connection.close()

    async def _begin(self, engine: postgres.AsyncEngine, locks: postgres.TextClause | None) -> postgres.AsyncConnection:
        """Return a connection that has the locks. Raises StateError after `BUSY` seconds."""
        until = time.monotonic() + BUSY
        while True:
            try:
                await self._open()
                connection = await engine.connect()
                try:
                    await self._clock.follow(connection)
                    if locks is not None:
                        await connection.execute(locks)
                except BaseException:
                    await connection.close()
                    raise
                return connection
            except postgres.CONNECT_ERRORS as error:
                if self._closed or time.monotonic() > until or not postgres.is_unreachable(error):
                    raise self._to_state_error(error) from error
            await asyncio.sleep(PAUSE)

    async def _open(self) -> None:
        """Create or upgrade the tables, the first time. Raises StateError and the errors of connections."""
        if self._is_open:
            return
        async with self._opening:
            if self._is_open:
                return
            async with self._engine.begin() as connection:
                is_final = await connection.run_sync(postgres_schema.prepare_schema, upgrades=self._upgrades)
            if is_final:
                async with self._engine.begin() as connection:
                    await connection.run_sync(postgres_schema.end_other_connections)
            self._is_open = True

    async def _connect(self) -> Any:
        """Return a connection of the driver, unless the tables are newer than this version can use by now."""
        raw = await postgres.connect(self.url)
        if self._is_open:
            try:
                postgres_schema.refuse_newer(*await raw.fetchrow(migrate.VERSIONS))
            except BaseException:
                await raw.close()
                raise
        return raw

    async def _translate(self, work: Awaitable[T], outcome: str) -> T:
        """Return what `work` returns. Raises StateError for an error of the database."""
        try:
            return await work
        except TimeoutError:
            raise
        except postgres.ERRORS as error:
            raise self._to_state_error(error, outcome) from error

    def _to_state_error(self, error: Exception, outcome: str = UNCHANGED) -> StateError:
        """Return the error for the caller of a transaction that raised `error`, which is logged."""
        if isinstance(error, StateError):
            return error
        what = postgres.describe_error(error)
        cause = self.url.hide_password(f"{getattr(error, 'orig', None) or error or type(error).__name__}")
        log.error("the state database %s %s: %s", self.url, what, cause)
        return StateError(f"the state database (PostgreSQL) {what}; {outcome}, and the server's log says more")

"""Run transactions on PostgreSQL.

A transaction sees what others have committed (READ COMMITTED), and holds an advisory lock for what it needs alone. A
read sees one moment (REPEATABLE READ). Their functions are synchronous: SQLAlchemy runs them in greenlets of the event
loop, so they wait for nothing but the database.

One deadline covers all that a transaction waits for: its turn, a connection, each statement, the commit. After it the
connection is severed, so nothing more is sent, and the caller learns whether the commit was.
"""

import asyncio
import contextlib
import logging
import time
from collections.abc import Awaitable, Callable, Coroutine
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar
from weakref import WeakValueDictionary

from toolgate.server.base.errors import StateError
from toolgate.server.base.limits.state_budget import StateBudget, current_budget
from toolgate.server.features.postgres.database import driver, preparation
from toolgate.server.features.postgres.database.clock import DatabaseClock
from toolgate.server.features.postgres.database.processes import PostgresProcesses
from toolgate.server.features.postgres.database_url import DatabaseUrl
from toolgate.server.state import migrate
from toolgate.server.state.commit_gate import UNCHANGED, UNKNOWN, CommitGate
from toolgate.server.state.errors import state_silent_error
from toolgate.server.state.store import Subject

if TYPE_CHECKING:
    from sqlalchemy import Connection

BUSY = 2.0  # seconds to wait for a database that can't be reached: it may be restarting
PAUSE = 0.1  # seconds between two tries
CLOSE_WITHIN = 0.3  # seconds for running transactions when the store is closed
NAME = "the state database (PostgreSQL)"

T = TypeVar("T")

log = logging.getLogger(__name__)


class _Transaction:
    """A transaction under way: its end for the caller, its deadline, and the connection to sever after that.

    budget: of the call that waits for it, or None
    seconds: how long it may take
    """

    def __init__(self, budget: StateBudget | None, seconds: float) -> None:
        self.budget = budget
        self.seconds = seconds
        self.began = time.monotonic()
        self.gate = CommitGate()
        self.raw: Any = None  # the driver's connection
        self.timer: asyncio.TimerHandle | None = None
        self.outcome: asyncio.Future[Any] = asyncio.get_running_loop().create_future()

    def is_overdue(self) -> bool:
        """Return whether there is no time for another try to connect."""
        return time.monotonic() - self.began > min(BUSY, self.seconds)


class PostgresStore:
    """The database at `url`, whose connections come back by themselves. `folder` has the server's other files.

    There are no flags: each question that a flag would answer reads the database. Without `upgrades` a database of an
    older version is refused. A transaction of a call has what is left of the call's budget, any other `within` seconds.
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
        self._engine = driver.open_engine(self._connect)
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
        return await self._start(partial(self._read, function))

    async def transact(
        self, function: "Callable[[Connection], T]", *, alone: Subject | tuple[Subject, str] | None = "everything"
    ) -> T:
        """Run `function` with the locks of `alone`. A cancelled caller's transaction runs to its end."""
        name = "\0".join(alone) if isinstance(alone, tuple) else alone
        return await self._start(partial(self._take_turn, function, name))

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

    async def _start(self, work: Callable[[_Transaction], Coroutine[Any, Any, T]]) -> T:
        """Run the transaction in a task of its own, which the caller's cancellation does not reach."""
        if self._closed:
            raise StateError("the server is shutting down: its state is closed")
        budget = current_budget()
        transaction = _Transaction(budget, self._within if budget is None else budget.remaining())
        if transaction.seconds <= 0:
            raise state_silent_error(UNCHANGED, NAME)
        task = asyncio.create_task(work(transaction), name="transaction")
        self._running.add(task)
        task.add_done_callback(partial(self._end, transaction))
        if budget is not None:  # else opening the database, which may upgrade it, takes the time that it needs
            self._start_clock(task, transaction)
        try:
            result: T = await asyncio.shield(transaction.outcome)
            return result
        finally:
            if budget is not None:
                budget.spend(transaction.began)

    def _start_clock(self, task: "asyncio.Task[Any]", transaction: _Transaction) -> None:
        loop = asyncio.get_running_loop()
        transaction.timer = loop.call_later(transaction.seconds, self._give_up, task, transaction)

    def _give_up(self, task: "asyncio.Task[Any]", transaction: _Transaction) -> None:
        """Release the caller and the connection. Nothing more is sent, so what was not committed never is."""
        known = transaction.gate.abandon()
        log.error("the state database %s did not answer within %.1f s; %s", self.url, transaction.seconds, known)
        if not transaction.outcome.done():
            transaction.outcome.set_exception(state_silent_error(known, NAME))
            transaction.outcome.exception()  # its caller may have been cancelled, and nobody else looks at it
        if transaction.raw is not None:
            transaction.raw.terminate()
        task.cancel()

    def _end(self, transaction: _Transaction, task: "asyncio.Task[Any]") -> None:
        self._running.discard(task)
        if transaction.timer is not None:
            transaction.timer.cancel()
        error = None if task.cancelled() else task.exception()
        outcome = transaction.outcome
        if outcome.done():
            return
        if task.cancelled():  # by `aclose`
            error = StateError("the server shut down before this was stored")
        if error is None:
            outcome.set_result(task.result())
        else:
            outcome.set_exception(error)
            outcome.exception()  # as above

    async def _read(self, function: "Callable[[Connection], T]", transaction: _Transaction) -> T:
        """Read again where the connection was lost: a read changes nothing."""
        while True:
            try:
                return await self._run(function, self._snapshots, None, transaction)
            except StateError as error:
                lost = error.__cause__ is not None and driver.is_unreachable(error.__cause__)
                if self._closed or transaction.is_overdue() or not lost:
                    raise

    async def _take_turn(self, function: "Callable[[Connection], T]", name: str | None, transaction: _Transaction) -> T:
        """Wait for transactions of this process with an equal name, so that they don't wait with a connection each."""
        locks = driver.lock_statement(name, None if transaction.budget is None else transaction.seconds)
        if name is None:
            return await self._run(function, self._engine, locks, transaction)
        async with self._turns.setdefault(name, asyncio.Lock()):
            return await self._run(function, self._engine, locks, transaction)

    async def _run(
        self,
        function: "Callable[[Connection], T]",
        engine: driver.AsyncEngine,
        locks: driver.TextClause | None,
        transaction: _Transaction,
    ) -> T:
        connection = await self._begin(engine, locks, transaction)
        try:
            result = await self._translate(connection.run_sync(function), UNCHANGED)
            if locks is None:  # a read
                await self._translate(connection.commit(), UNCHANGED)
            else:
                transaction.gate.enter_commit()
                await self._translate(connection.commit(), UNKNOWN)
            return result
        finally:
            transaction.raw = None
            await driver.release(connection)

    async def _begin(
        self, engine: driver.AsyncEngine, locks: driver.TextClause | None, transaction: _Transaction
    ) -> driver.AsyncConnection:
        """Return a connection that has the locks. Raises StateError where PostgreSQL can't be reached for `BUSY`
        seconds."""
        while True:
            try:
                await self._open()
                if transaction.timer is None:
                    self._start_clock(_current_task(), transaction)
                connection = await engine.connect()
                try:
                    transaction.raw = _find_raw(connection)
                    await self._clock.follow(connection)
                    if locks is not None:
                        await connection.execute(locks)
                except BaseException:
                    transaction.raw = None
                    await driver.release(connection)
                    raise
                return connection
            except driver.CONNECT_ERRORS as error:
                if self._closed or transaction.is_overdue() or not driver.is_unreachable(error):
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
                is_final = await connection.run_sync(preparation.prepare_schema, upgrades=self._upgrades)
            if is_final:
                async with self._engine.begin() as connection:
                    await connection.run_sync(preparation.end_other_connections)
            self._is_open = True

    async def _connect(self) -> Any:
        """Return a connection of the driver, unless the tables are newer than this version can use by now."""
        raw = await driver.connect(self.url)
        try:
            async with asyncio.timeout(driver.CONNECT):
                await driver.notice_end(raw)
                if self._is_open:
                    preparation.check_version(*await raw.fetchrow(migrate.VERSIONS))
        except BaseException:
            raw.terminate()
            raise
        return raw

    async def _translate(self, work: Awaitable[T], outcome: str) -> T:
        """Return what `work` returns. Raises StateError for an error of the database."""
        try:
            return await work
        except driver.ERRORS as error:
            raise self._to_state_error(error, outcome) from error

    def _to_state_error(self, error: Exception, outcome: str = UNCHANGED) -> StateError:
        """Return the error for the caller of a transaction that raised `error`, which is logged."""
        if isinstance(error, StateError):
            return error
        what = driver.describe_error(error)
        cause = self.url.hide_password(f"{getattr(error, 'orig', None) or error or type(error).__name__}")
        log.error("the state database %s %s: %s", self.url, what, cause)
        return StateError(f"{NAME} {what}; {outcome}, and the server's log says more")


def _find_raw(connection: driver.AsyncConnection) -> Any:
    """Return the driver's connection under one of SQLAlchemy."""
    assert connection.sync_connection is not None
    return connection.sync_connection.connection.driver_connection


def _current_task() -> "asyncio.Task[Any]":
    task = asyncio.current_task()
    assert task is not None
    return task

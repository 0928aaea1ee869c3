"""Tell which of the server processes on one PostgreSQL are alive.

Each holds an advisory lock by a connection of its own. The database releases it when that ends, so a killed process is
dead at once. A frozen one counts as alive.
"""

import asyncio
import contextlib
import logging
import os
from collections.abc import Iterable
from typing import Any

from toolgate.server.base.errors import StateError
from toolgate.server.base.limits.state_budget import bounded_wait
from toolgate.server.features.postgres.database import driver
from toolgate.server.features.postgres.database_url import DatabaseUrl

PAUSE = 0.5  # seconds between two tries to connect again
ANSWER = 2.0  # seconds for an answer; the connection stays, since its end would mark this process as dead

log = logging.getLogger(__name__)


class PostgresProcesses:
    """The `LiveProcesses` of the database at `url`. This process is one of them from its first `own_name` on."""

    def __init__(self, url: DatabaseUrl) -> None:
        self._url = url
        self._name = os.urandom(8).hex()
        self._connection: Any = None
        self._entering = asyncio.Lock()
        self._reading = asyncio.Lock()  # a connection carries out one statement at a time
        self._next_reading: asyncio.Task[set[int]] | None = None  # that did not begin yet
        self._readings: set[asyncio.Task[set[int]]] = set()  # two at most: the one under way, and the next
        self._return: asyncio.Task[None] | None = None
        self._closed = False

    def own_name(self) -> str:
        if self._is_away():
            try:
                driver.await_only(self._enter())
            except driver.CONNECT_ERRORS as error:
                log.error("this process can't be marked as alive in PostgreSQL: %s", driver.describe_error(error))
                raise StateError("this process can't be marked as alive; the server's log says why") from error
        return self._name

    async def find_dead(self, names: Iterable[str]) -> frozenset[str]:
        others = frozenset(names) - {self._name}
        if not others:
            return others
        try:
            async with bounded_wait(ANSWER):
                held = await asyncio.shield(self._read_soon())
        except driver.CONNECT_ERRORS as error:
            log.warning("it is not known which servers live: %s", driver.describe_error(error))
            return frozenset()
        return frozenset(name for name in others if driver.lock_number(_lock_name(name)) not in held)

    def close(self) -> None:
        self._closed = True
        for reading in self._readings:
            reading.cancel()
        if self._return is not None:
            self._return.cancel()
        if not self._is_away():
            self._connection.terminate()

    def _read_soon(self) -> "asyncio.Task[set[int]]":
        """Return a reading that begins from now on: an earlier one may not know a process that has just started."""
        if self._next_reading is None:
            reading = self._next_reading = asyncio.get_running_loop().create_task(self._read_held())
            self._readings.add(reading)
            reading.add_done_callback(self._end_reading)
        return self._next_reading

    async def _read_held(self) -> set[int]:
        async with self._reading:
            self._next_reading = None
            await self._enter()
            return await driver.fetch_held_locks(self._connection)

    def _end_reading(self, reading: "asyncio.Task[set[int]]") -> None:
        self._readings.discard(reading)
        if not reading.cancelled():
            reading.exception()  # its callers may have gone, and nobody else looks at it

    def _is_away(self) -> bool:
        return self._connection is None or self._connection.is_closed()

    async def _enter(self) -> None:
        """Connect, and hold the lock as long as the connection lasts."""
        async with self._entering:
            if not self._is_away() or self._closed:
                return
            raw = await driver.connect(self._url)
            try:
                async with asyncio.timeout(driver.CONNECT):
                    await raw.execute("SELECT pg_advisory_lock($1)", driver.lock_number(_lock_name(self._name)))
            except BaseException:
                raw.terminate()
                raise
            raw.add_termination_listener(self._handle_end)
            self._connection = raw

    def _handle_end(self, _connection: object) -> None:
        if not self._closed:
            self._return = asyncio.get_running_loop().create_task(self._come_back())

    async def _come_back(self) -> None:
        while self._is_away() and not self._closed:
            with contextlib.suppress(*driver.CONNECT_ERRORS):
                await self._enter()
                return
            await asyncio.sleep(PAUSE)


def _lock_name(process: str) -> str:
    return f"process\0{process}"

"""Hold a lock in PostgreSQL as long as this process lives, and tell which other replicas hold theirs.

The lock is a session's: it ends with its connection, which the system closes at once when the process is killed.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable
from typing import Any

from toolgate.server.features.postgres.database import driver

APPLICATION = "toolgate replica"  # the name under which PostgreSQL lists the connection that holds the lock
PAUSE = 1.0  # seconds before the next try to connect

log = logging.getLogger(__name__)


class ReplicaLock:
    """The lock of the replica `name`. `connect` returns a connection of the driver, which is this lock's alone."""

    def __init__(self, name: str, connect: Callable[[], Awaitable[Any]]) -> None:
        self._name = name
        self._connect = connect
        self._connection: Any = None  # that holds the lock, or None
        self._reading = asyncio.Lock()  # a connection carries out one statement at a time
        self._seen: set[str] = set()  # replicas that were seen with their locks

    async def hold(self) -> None:
        """Hold the lock until cancelled, and take it again when the connection is lost."""
        while True:
            try:
                await self._hold_once()
            except driver.CONNECT_ERRORS as error:
                log.warning("the lock of this replica can't be taken: %s", type(error).__name__)
            await asyncio.sleep(PAUSE)

    async def find_released(self, names: Iterable[str]) -> frozenset[str]:
        """Return those that held their locks once, and do not now. Nothing is known while PostgreSQL is away."""
        async with self._reading:
            if self._connection is None:
                return frozenset()
            try:
                numbers = await driver.fetch_held_locks(self._connection)
            except driver.CONNECT_ERRORS:
                return frozenset()
        asked = frozenset(names)
        held = {name for name in asked if _number(name) in numbers}
        released = (asked & self._seen) - held
        self._seen |= held
        return released

    async def _hold_once(self) -> None:
        """Hold the lock until the connection is lost."""
        connection = await self._connect()
        lost = asyncio.Event()
        connection.add_termination_listener(lambda _: lost.set())
        try:
            await connection.execute(f"SET application_name = '{APPLICATION}'")
            await connection.fetchval("SELECT pg_advisory_lock($1)", _number(self._name))
            self._connection = connection
            await lost.wait()
        finally:
            self._connection = None
            connection.terminate()


def _number(name: str) -> int:
    return driver.lock_number(f"replica {name}")

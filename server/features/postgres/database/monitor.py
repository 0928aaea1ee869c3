"""Ask PostgreSQL every second whether it answers, over a connection that no transaction uses."""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Any

from toolgate.server.features.postgres.database import driver
from toolgate.server.state.store import DatabaseHealth

INTERVAL = 1.0  # seconds between two questions
TIMEOUT = 2.0  # seconds for an answer

log = logging.getLogger(__name__)


class PostgresMonitor:
    """Knows whether PostgreSQL answers. `connect` returns a connection of the driver, which is this monitor's alone;
    `count_transactions` returns how many have a connection of the store, and how many wait."""

    def __init__(
        self, connect: Callable[[], Awaitable[Any]], count_transactions: Callable[[], tuple[int, int]]
    ) -> None:
        self._connect = connect
        self._count_transactions = count_transactions
        self._connection: Any = None
        self._clock = asyncio.get_running_loop().time
        self._answered_at = self._since = self._clock()  # the server starts only if it reaches PostgreSQL
        self._latency = 0.0
        self._is_reachable = True

    def health(self) -> DatabaseHealth:
        running, waiting = self._count_transactions()
        since = self._since if self._is_reachable else self._answered_at
        return DatabaseHealth(self._is_reachable, self._clock() - since, self._latency, running, waiting)

    async def run(self) -> None:
        """Ask until cancelled."""
        try:
            while True:
                await self._ask()
                await asyncio.sleep(INTERVAL)
        finally:
            self._disconnect()

    async def _ask(self) -> None:
        try:
            async with asyncio.timeout(TIMEOUT):
                if self._connection is None:
                    self._connection = await self._connect()
                begun = self._clock()
                await self._connection.fetchval("SELECT 1")
        except driver.CONNECT_ERRORS as error:
            self._disconnect()
            if self._is_reachable:
                log.warning("PostgreSQL does not answer: it %s", driver.describe_error(error))
            self._is_reachable = False
            return
        self._answered_at = self._clock()
        self._latency = self._answered_at - begun
        if not self._is_reachable:
            log.warning("PostgreSQL answers again")
            self._is_reachable, self._since = True, self._answered_at

    def _disconnect(self) -> None:
        if self._connection is not None:
            self._connection.terminate()
            self._connection = None

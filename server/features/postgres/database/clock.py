"""Tell the time of the database without asking it each time: several servers store times, and their clocks differ."""

import time
from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sqlalchemy.ext.asyncio import AsyncConnection

INTERVAL = 60.0  # seconds between two measurements: a clock drifts by milliseconds meanwhile
TRIES = 3  # the quickest counts: it is wrong by half of its duration at most
NOW = "SELECT extract(epoch FROM clock_timestamp())"


class DatabaseClock:
    """The database's time, measured while the database is in use; before the first measurement, this machine's.

    local: seconds since the epoch by the clock of this machine
    elapsed: seconds that no setting of that clock changes
    """

    def __init__(self, local: Callable[[], float] = time.time, elapsed: Callable[[], float] = time.monotonic) -> None:
        self._local = local
        self._elapsed = elapsed
        self._offset: float | None = None  # from `elapsed` to the database's time
        self._measured = 0.0  # by `elapsed`

    def now(self) -> float:
        return self._local() if self._offset is None else self._elapsed() + self._offset

    async def follow(self, connection: "AsyncConnection") -> None:
        """Measure with this connection, if the last measurement is old."""
        if self._offset is not None and self._elapsed() - self._measured < INTERVAL:
            return
        best = None
        for _ in range(TRIES):
            sent = self._elapsed()
            there = float((await connection.exec_driver_sql(NOW)).scalar_one())
            received = self._elapsed()
            if best is None or received - sent < best[0]:
                best = received - sent, there - (sent + received) / 2
                self._offset, self._measured = best[1], received

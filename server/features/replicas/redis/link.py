"""Keep one connection to Redis open: connect again when it is lost, after pauses that double."""

import asyncio
import logging
import random
from collections.abc import Callable, Coroutine
from typing import Any

from toolgate.server.base.bus.bus import BusUnreachableError
from toolgate.server.features.replicas.redis.connection import Redis, RedisServer

FIRST_PAUSE = 0.02  # seconds before the first try to connect again
LONGEST_PAUSE = 1.0
STEADY = 5.0  # seconds that a connection lasts before the pauses begin again

log = logging.getLogger("toolgate.bus")


class RedisLink:
    """One connection that is made again. `serve` uses it until it raises. `seconds` bounds each try to connect.

    `failure` says why there is no connection, and is None while there is one. `since` is when that began.
    """

    def __init__(
        self,
        server: RedisServer,
        purpose: str,
        serve: Callable[[Redis], Coroutine[Any, Any, None]],
        seconds: float,
    ) -> None:
        self._server = server
        self._purpose = purpose
        self._serve = serve
        self._seconds = seconds
        self._loop = asyncio.get_running_loop()
        self._first_try = asyncio.Event()
        self._is_logged = False
        self.failure: BusUnreachableError | None = BusUnreachableError(f"Redis at {server.name} is not connected yet")
        self.since = self._loop.time()
        self._task = self._loop.create_task(self._run(), name=f"Redis: {purpose}")

    async def wait_first_try(self) -> None:
        """Wait until the first try to connect has succeeded or failed."""
        await self._first_try.wait()

    def is_away_for(self, seconds: float) -> bool:
        """Return whether there has been no connection for so long: then waiting for one is in vain."""
        return self.failure is not None and self._loop.time() - self.since > seconds

    def copy_failure(self) -> BusUnreachableError:
        """Return a new error with the text of `failure`, so that each caller gets its own traceback."""
        return BusUnreachableError(str(self.failure))

    async def close(self) -> None:
        self._task.cancel()
        await asyncio.wait([self._task])

    async def _run(self) -> None:
        pause = FIRST_PAUSE
        while True:
            began = self._loop.time()
            failure = await self._connect_and_serve()
            if self._loop.time() - began > STEADY:
                pause = FIRST_PAUSE
            self._note_failure(failure)
            await asyncio.sleep(pause * random.uniform(0.5, 1.0))  # noqa: S311  replicas do not return all at once
            pause = min(2 * pause, LONGEST_PAUSE)

    async def _connect_and_serve(self) -> BusUnreachableError:
        """Return why the connection ended, or why there was none."""
        try:
            async with self._server.connect(self._seconds) as client:
                self._note_connected()
                await self._serve(client)
        except Exception as error:  # noqa: BLE001  # of the library, of TLS, or of a reply that is none
            return self._server.unreachable(error, self._seconds)
        return self._server.unreachable(None)

    def _note_connected(self) -> None:
        if self._is_logged:
            log.warning("Redis at %s answers again (%s)", self._server.name, self._purpose)
            self._is_logged = False
        self.failure, self.since = None, self._loop.time()
        self._first_try.set()

    def _note_failure(self, failure: BusUnreachableError) -> None:
        if self.failure is None or not self._first_try.is_set():
            self.since = self._loop.time()
        if not self._is_logged:
            log.warning("%s (%s)", failure, self._purpose)
            self._is_logged = True
        self.failure = failure
        self._first_try.set()

"""Small writes that come at the same time, in one transaction. Knows nothing of what is written."""

import asyncio
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from toolgate.server.state.store import Store

if TYPE_CHECKING:
    from sqlalchemy import Connection

    Write = Callable[[Connection], None]
    Waiting = tuple[Write, asyncio.Future[None]]


class Batch:
    """What is added while a transaction is under way is written by the next one, in the order that it came."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._waiting: list[Waiting] = []
        self._work: asyncio.Task[None] | None = None

    def add(self, write: "Write") -> "asyncio.Future[None]":
        """What is done when `write(connection)` is committed. Fails with a StateError; then nothing was written."""
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append((write, done))
        if self._work is None:
            self._work = asyncio.get_running_loop().create_task(self._write())
        return done

    async def _write(self) -> None:
        while self._waiting:
            batch, self._waiting = self._waiting, []
            failure: Exception | None = None
            try:
                await self._store.transact(partial(_all, batch))
            except Exception as error:  # noqa: BLE001  # whoever added it is told
                failure = error
            for _, done in batch:
                if done.done():
                    continue
                if failure is None:
                    done.set_result(None)
                else:
                    done.set_exception(failure)
        self._work = None


def _all(batch: "list[Waiting]", connection: "Connection") -> None:
    for write, _ in batch:
        write(connection)

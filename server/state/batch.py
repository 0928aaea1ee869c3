"""Small writes that come at the same time, in one transaction. Knows nothing of what is written."""

import asyncio
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from toolgate.server.state.store import Store

if TYPE_CHECKING:
    from sqlalchemy import Connection

    Write = Callable[[Connection], None]
    Waiting = tuple[Write, asyncio.Future[None]]


class WriteBatch:
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
            failures: list[Exception | None]
            try:
                failures = await self._store.transact(partial(self._write_all, batch))
            except Exception as error:  # noqa: BLE001  # whoever added it is told
                failures = [error] * len(batch)
            for (_, done), failure in zip(batch, failures, strict=True):
                if done.done():
                    continue
                if failure is None:
                    done.set_result(None)
                else:
                    done.set_exception(failure)
        self._work = None

    def _write_all(self, batch: "list[Waiting]", connection: "Connection") -> list[Exception | None]:
        """Do each write; gives why it could not be done. One that fails takes no other with it."""
        return [self._write_one(write, connection) for write, _ in batch]

    def _write_one(self, write: "Write", connection: "Connection") -> Exception | None:
        raw: Any = (
            connection.connection.driver_connection
        )  # SQLAlchemy's savepoints cost more than what they are around
        raw.execute("SAVEPOINT one")
        try:
            write(connection)
        except Exception as error:
            if not raw.in_transaction:  # a full disk may have ended it: those before this one are not written either
                raise
            raw.execute("ROLLBACK TO one")
            return self._store.to_state_error(error)
        finally:
            if raw.in_transaction:
                raw.execute("RELEASE one")
        return None

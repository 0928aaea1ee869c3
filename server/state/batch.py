"""Write small changes that come at the same time in one transaction."""

import asyncio
import time
from collections.abc import Callable
from contextvars import Context
from functools import partial

from toolgate.server.base.limits.state_budget import current_budget, start_budget
from toolgate.server.state import tables
from toolgate.server.state.commit_gate import UNCHANGED
from toolgate.server.state.errors import StateSilentError, state_silent_error
from toolgate.server.state.store import Store

Write = Callable[["tables.Connection"], None]
Waiting = tuple[Write, "asyncio.Future[None]"]


class WriteBatch:
    """Collect writes during a transaction, and run them in order in the next one.

    Other transactions may run meanwhile, so what a write does must not depend on what it read. Each transaction has the
    budget of a call, since calls wait for it.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self._waiting: list[Waiting] = []
        self._work: asyncio.Task[None] | None = None

    def add(self, write: Write) -> "asyncio.Future[None]":
        """Return a future that is done when `write(connection)` is committed, or fails with StateError."""
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        budget, began = current_budget(), time.monotonic()
        if budget is not None:
            done.add_done_callback(lambda _: budget.spend(began))
        self._waiting.append((write, done))
        if self._work is None:
            self._work = asyncio.get_running_loop().create_task(self._write(), context=Context())
        return done

    async def _write(self) -> None:
        while self._waiting:
            batch, self._waiting = self._waiting, []
            failures: list[Exception | None]
            start_budget()
            try:
                failures = await self._store.transact(partial(self._write_all, batch), alone=None)
            except Exception as error:  # noqa: BLE001  # each future gets it
                failures = [error] * len(batch)
                if isinstance(error, StateSilentError):  # those that came meanwhile have waited, too
                    self._refuse_waiting()
            _settle(batch, failures)
            del batch, failures  # the errors' tracebacks hold this frame
        self._work = None

    def _refuse_waiting(self) -> None:
        batch, self._waiting = self._waiting, []
        _settle(batch, [state_silent_error(UNCHANGED) for _ in batch])

    def _write_all(self, batch: list[Waiting], connection: "tables.Connection") -> list[Exception | None]:
        """Do each write and return its error, if any. A failed write undoes no other."""
        return [self._store.try_write(write, connection) for write, _ in batch]


def _settle(batch: list[Waiting], failures: "list[Exception | None]") -> None:
    for (_, done), failure in zip(batch, failures, strict=True):
        if done.done():
            continue
        if failure is None:
            done.set_result(None)
        else:
            done.set_exception(failure)

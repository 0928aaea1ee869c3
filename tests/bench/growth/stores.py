"""Rows about the state database: an SQLite file beside which an action is done."""

import asyncio
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.bench.growth.measure import Row, Trial
from toolgate.server.state import tables
from toolgate.server.state.callback_timer import CallbackTimer
from toolgate.server.state.callbacks import CallbackStore
from toolgate.server.state.sqlite_store import SqliteStore
from toolgate.server.state.store import Store
from toolgate.server.state.todos import TodoStore

LONG = 1e6  # seconds: nothing that waits falls due meanwhile


def fill(store: Store, table: Any, rows: Sequence[dict[str, Any]]) -> Callable[[], Any]:
    """Return what adds the rows to a table."""
    return lambda: store.transact(lambda connection: connection.execute(table.insert(), list(rows)))


@contextmanager
def open_trial(folder: Path) -> Generator[tuple[asyncio.Runner, SqliteStore]]:
    """Yield an event loop and a store in the folder."""
    store = SqliteStore(folder)
    with asyncio.Runner() as runner:
        try:
            yield runner, store
        finally:
            store.close()


@contextmanager
def beside_callbacks(folder: Path, size: int) -> Generator[Trial]:
    """Yield a trial that sets a callback, looks for due ones and cancels it, beside `size` callbacks of others."""
    with open_trial(folder) as (runner, store):
        timer = CallbackTimer(store, lambda _: None)
        own = timer.processes.own_name()
        row = {"message": "look", "delay": 3_600, "left": -1, "session": "", "process": own}
        due = store.now() + LONG
        rows = [{**row, "principal": f"u-{n // 8}", "slot": n % 8, "next_at": due} for n in range(size)]
        runner.run(fill(store, tables.callback, rows)())
        callbacks = CallbackStore(store, timer, "ada", "")

        async def act() -> None:
            callback = await callbacks.set("tea", 3_600, 1)
            await timer.fire_due()
            await callbacks.cancel(callback.id)

        try:
            yield Trial(lambda: runner.run(act()))
        finally:
            timer.processes.close()


def _act_on_todos(runner: asyncio.Runner, store: Store) -> Trial:
    """Return what makes a to-do, looks at the open ones and completes it."""
    todos = TodoStore(store, "ada", "s-1")

    async def act() -> None:
        todo = await todos.create("tea")
        await todos.list_open()
        await todos.switch(todo.id)
        await todos.complete(todo.id)

    return Trial(lambda: runner.run(act()))


@contextmanager
def beside_completed_todos(folder: Path, size: int) -> Generator[Trial]:
    """Yield a trial with one to-do of a principal that has completed `size` others."""
    with open_trial(folder) as (runner, store):
        rows = [{"principal": "ada", "name": f"number {n}", "completed": True} for n in range(size)]
        runner.run(fill(store, tables.task, rows)())
        yield _act_on_todos(runner, store)


@contextmanager
def beside_old_sessions(folder: Path, size: int) -> Generator[Trial]:
    """Yield a trial with one to-do, beside `size` sessions of others that had a current to-do."""
    with open_trial(folder) as (runner, store):
        runner.run(fill(store, tables.task, [{"principal": "bob", "name": "old", "completed": False}])())
        row = {"principal": "bob", "task_id": 1, "set_at": store.now()}
        runner.run(fill(store, tables.focus, [{**row, "session": f"s-{n}"} for n in range(size)])())
        yield _act_on_todos(runner, store)


ROWS = (
    Row("set, look for and cancel a callback, beside n of others", 64, beside_callbacks),
    Row("create, list and complete a to-do, beside n completed ones", 200, beside_completed_todos),
    Row("create, switch and complete a to-do, beside n old sessions", 400, beside_old_sessions),
)

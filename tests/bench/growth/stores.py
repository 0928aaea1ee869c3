"""Rows about the state database: an SQLite file beside which an action is done."""

import asyncio
import time
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
from sqlalchemy import Engine, event

from tests.bench.growth.measure import Row, Trial
from toolgate.server.auth.grants import MAX_SHOWN, Grants
from toolgate.server.auth.login.accounts import Person
from toolgate.server.base.principals.principal import derive_subject
from toolgate.server.features.events.log.log import EventLog
from toolgate.server.features.events.log.rows import EventLimits
from toolgate.server.state import tables
from toolgate.server.state.rows.callback_timer import CallbackTimer
from toolgate.server.state.rows.callbacks import CallbackStore
from toolgate.server.state.rows.people import BUILT_IN
from toolgate.server.state.rows.todos import TodoStore
from toolgate.server.state.sqlite.store import SqliteStore
from toolgate.server.state.store import Store

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


class LongestTransaction:
    """The processor time of the longest transaction of each action, summed up."""

    def __init__(self) -> None:
        self.total = 0.0
        self._longest = self._begun = 0.0

    def begin(self, _connection: object) -> None:
        self._begun = time.thread_time()

    def end(self, _connection: object) -> None:
        self._longest = max(self._longest, time.thread_time() - self._begun)

    def read(self) -> float:
        self.total += self._longest
        self._longest = 0.0
        return self.total


@contextmanager
def beside_old_events(folder: Path, size: int) -> Generator[Trial]:
    """Yield a trial that sweeps `size` logs, each of which has one event that has become too old."""
    longest, clock = LongestTransaction(), [0.0]
    event.listen(Engine, "begin", longest.begin)
    event.listen(Engine, "commit", longest.end)
    try:
        with open_trial(folder) as (runner, store):
            log = EventLog(store, EventLimits(age=100.0), lambda: clock[0])
            people = [f"u-{n}" for n in range(size)]
            row = {"name": "log", "last": 40, "event_count": 40, "byte_count": 80}
            runner.run(fill(store, tables.event_log, [{**row, "principal": each} for each in people])())
            interest = {"type": "built", "arguments": "{}", "since": 0, "until": LONG}
            runner.run(fill(store, tables.event_interest, [{**interest, "principal": each} for each in people])())
            for n in range(40):
                happened = {"number": n + 1, "id": f"evt_{n}", "type": "built", "data": b"{}", "happened_at": n * 1.0}
                runner.run(fill(store, tables.event, [{**happened, "principal": each} for each in people])())
            clock[0] = 99.5

            async def act() -> None:
                clock[0] += 1.0
                await log.sweep()

            longest.read()
            yield Trial(lambda: runner.run(act()), longest.read)
    finally:
        event.remove(Engine, "begin", longest.begin)
        event.remove(Engine, "commit", longest.end)


def _add_grants(runner: asyncio.Runner, store: Store, size: int) -> None:
    """Store `size` grants of one person, each to a client of its own."""
    metadata = msgspec.json.encode(
        {"client_name": "app", "redirect_uris": [], "token_endpoint_auth_method": "none", "grant_types": []}
    ).decode()
    client = {"kind": "dynamic", "metadata": metadata, "made_at": 0.0, "granted_at": 0.0}
    runner.run(fill(store, tables.client, [{**client, "id": f"c-{n}"} for n in range(size)])())
    person = {"issuer": BUILT_IN, "known_as": "ada", "name": "ada", "seen_at": 0.0}
    subject = derive_subject(BUILT_IN, "ada")
    runner.run(fill(store, tables.person, [{**person, "subject": subject}])())
    row = {"subject": subject, "scope": "", "resource": "", "redirect_uri": "", "family": ""}
    row |= {"used_at": 0.0, "expires_at": store.now() + LONG}
    grants = [{**row, "id": f"g-{n}", "client": f"c-{n}", "made_at": float(n)} for n in range(size)]
    runner.run(fill(store, tables.grant, grants)())


@contextmanager
def beside_own_grants(folder: Path, size: int) -> Generator[Trial]:
    """Yield a trial that reads what the pages of a person with `size` grants show."""
    with open_trial(folder) as (runner, store):
        _add_grants(runner, store, size)
        grants, ada = Grants(store, {}), Person(BUILT_IN, "ada", "ada")

        async def act() -> None:
            shown, count = await grants.list_newest(ada)
            assert len(shown) == min(size, MAX_SHOWN) and count == size
            await grants.has_grant(ada, "c-0")

        yield Trial(lambda: runner.run(act()))


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


FLAT_ROWS = (  # all work of an action is flat, not only its longest transaction
    Row("set, look for and cancel a callback, beside n of others", 64, beside_callbacks),
    Row("create, list and complete a to-do, beside n completed ones", 200, beside_completed_todos),
    Row("create, switch and complete a to-do, beside n old sessions", 400, beside_old_sessions),
)
ROWS = (
    *FLAT_ROWS,
    Row("read the newest grants of a person with n, and their count", 256, beside_own_grants),
    # the longest of many swings, and is to stay under 50 ms
    Row("sweep old events of n logs: the longest transaction", 100, beside_old_events, most=0.5, actions=1),
)

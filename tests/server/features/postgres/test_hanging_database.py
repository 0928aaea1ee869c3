"""PostgreSQL takes connections and answers nothing: calls that need it end by their budget, and others go on."""

import asyncio
import contextlib
import time
from collections.abc import AsyncGenerator, Callable
from pathlib import Path
from typing import Any

import pytest

from tests.clients.raw_client import PATIENCE
from tests.servers.postgres import Postgres
from tests.servers.state_limits import CALL
from toolgate.server.base.errors import StateError
from toolgate.server.base.limits.state_budget import start_budget
from toolgate.server.features.postgres.database.store import PostgresStore
from toolgate.server.features.postgres.database_url import parse_database_url
from toolgate.server.state.commit_gate import UNKNOWN
from toolgate.server.state.rows.callback_timer import CallbackTimer
from toolgate.server.state.rows.callbacks import CallbackStore
from toolgate.server.state.rows.todos import TodoStore

pytestmark = pytest.mark.usefixtures("real_state_limits")
END = CALL + 10.0  # seconds in which a call ends on a slow machine; PostgreSQL hangs for as long as it takes


def run_one(url: str, body: Any, **how: Any) -> Any:
    async def bounded() -> Any:
        store = PostgresStore(Path("/nowhere"), parse_database_url(url), **how)
        try:
            async with asyncio.timeout(PATIENCE):
                await store.prepare()  # without a budget: a slow machine needs time for all tables
                return await body(store)
        finally:
            await store.aclose()

    return asyncio.run(bounded())


async def create(store: PostgresStore, name: str = "x") -> float:
    """Create a to-do as a call of its own does. Return its seconds, or raise StateError."""
    start_budget()
    began = time.monotonic()
    with contextlib.suppress(StateError):
        await TodoStore(store, "a", "").create(name)
    return time.monotonic() - began


async def list_todos(store: PostgresStore) -> list[str]:
    start_budget()
    return [todo.name for todo in await TodoStore(store, "a", "").all()]


@contextlib.asynccontextmanager
async def answerless_commits(port: int) -> AsyncGenerator[tuple[int, asyncio.Event]]:
    """Yield the port of a proxy that passes everything on to PostgreSQL, and an event: once it is set, nothing comes
    back from a commit on."""
    is_lossy = asyncio.Event()

    async def carry(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        to_server_reader, to_server = await asyncio.open_connection("127.0.0.1", port)
        is_silent = asyncio.Event()

        async def forward() -> None:
            while data := await reader.read(65_536):
                if b"COMMIT;" in data and is_lossy.is_set():
                    is_silent.set()
                to_server.write(data)

        async def answer() -> None:
            while data := await to_server_reader.read(65_536):
                if not is_silent.is_set():
                    writer.write(data)

        answering = asyncio.create_task(answer())
        try:
            await forward()
        finally:
            answering.cancel()
            to_server.close()
            writer.close()

    server = await asyncio.start_server(carry, "127.0.0.1", 0)
    try:
        yield server.sockets[0].getsockname()[1], is_lossy
    finally:
        server.close()


async def wait_until(is_true: Callable[[], bool]) -> None:
    async with asyncio.timeout(PATIENCE):
        while not is_true():
            await asyncio.sleep(0.02)


def test_a_flood_of_calls_ends_in_time_and_the_pool_serves_again(postgres: Postgres) -> None:
    async def body(store: PostgresStore) -> None:
        await create(store)
        with postgres.hanging():
            took = await asyncio.gather(*(asyncio.create_task(create(store)) for _ in range(100)))
            assert max(took) < END
            await wait_until(lambda: store.count_transactions() == (0, 0))
        async with asyncio.timeout(PATIENCE):
            while len(await list_todos(store)) < 20:  # by all connections of the pool
                await asyncio.gather(*(asyncio.create_task(create(store)) for _ in range(10)))
        assert store.count_transactions() == (0, 0)

    run_one(postgres.create_database(), body)


def test_a_commit_without_an_answer_is_not_known_and_not_repeated(postgres: Postgres) -> None:
    async def body(store: PostgresStore) -> None:
        async with answerless_commits(postgres.port) as (port, is_lossy):
            url = postgres.to_tcp(store.url.secret).replace(str(postgres.port), str(port))
            far = PostgresStore(Path("/nowhere"), parse_database_url(url))
            await far.prepare()
            is_lossy.set()
            start_budget()
            with pytest.raises(StateError, match=UNKNOWN):
                await TodoStore(far, "a", "").create("once")
            await far.aclose()
        assert (await list_todos(store)).count("once") == 1

    run_one(postgres.create_database(), body)


def test_what_was_given_up_before_its_commit_is_never_applied(postgres: Postgres) -> None:
    """PostgreSQL reads all that was sent when it goes on."""

    async def body(store: PostgresStore) -> None:
        await create(store)
        with postgres.hanging():
            start_budget()
            with pytest.raises(StateError, match="nothing was changed"):
                await TodoStore(store, "a", "").create("lost")
        await create(store, "later")
        assert await list_todos(store) == ["x", "later"]

    run_one(postgres.create_database(), body)


def test_the_transactions_of_a_call_share_one_budget(postgres: Postgres) -> None:
    async def body(store: PostgresStore) -> None:
        await create(store)
        with postgres.hanging():
            start_budget()
            began = time.monotonic()
            for _ in range(5):
                with pytest.raises(StateError, match="does not answer"):
                    await TodoStore(store, "a", "").create("x")
            assert time.monotonic() - began < END

    run_one(postgres.create_database(), body)


def test_a_callback_that_is_due_while_it_hangs_fires_soon_after(
    postgres: Postgres, caplog: pytest.LogCaptureFixture
) -> None:
    async def body(store: PostgresStore) -> None:
        fired = asyncio.Event()
        timer = CallbackTimer(store, lambda _: fired.set())
        await CallbackStore(store, timer, "a", "").set("tea", 1, 1)
        with postgres.hanging():
            await timer.start()
            await wait_until(lambda: "callbacks can't fire, the next try is in 2 s" in caplog.text)
        await fired.wait()
        await timer.stop()

    run_one(postgres.create_database(), body, within=1.0)


def test_which_processes_live_is_not_known_while_it_hangs(postgres: Postgres) -> None:
    async def body(store: PostgresStore) -> None:
        one, other = store.open_processes(), store.open_processes()
        name = await store.transact(lambda _: one.own_name())
        assert await other.find_dead([name, "gone"]) == frozenset(("gone",))
        with postgres.hanging():
            assert await asyncio.gather(*(other.find_dead([name, "gone"]) for _ in range(50))) == [frozenset()] * 50
        async with asyncio.timeout(PATIENCE):
            while await other.find_dead([name, "gone"]) != frozenset(("gone",)):
                await asyncio.sleep(0.05)
        one.close()
        other.close()

    run_one(postgres.create_database(), body)

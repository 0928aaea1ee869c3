"""What every store does, an SQLite file and PostgreSQL."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from tests.clients.raw_client import PATIENCE
from tests.server.state.each_store import ON_EACH, open_store, with_store
from toolgate.server.auth.login.accounts import Accounts
from toolgate.server.base.errors import StateError
from toolgate.server.features.postgres.database import store as postgres_store
from toolgate.server.state import tables
from toolgate.server.state.rows import grants as grant_rows
from toolgate.server.state.rows.todos import TodoStore
from toolgate.server.state.sqlite import store as sqlite_store
from toolgate.server.state.store import Store

pytestmark = ON_EACH
HALF = "\ud800"  # of a surrogate pair: UTF-8 has no such character


def add_todo(connection: Any, name: str = "x") -> None:
    connection.execute(tables.task.insert().values(principal="a", name=name, completed=False))


async def names(store: Store) -> list[str]:
    return [todo.name for todo in await TodoStore(store, "a", "").all()]


def test_a_transaction_that_raises_is_undone(tmp_path: Path) -> None:
    async def body(store: Store) -> None:
        def half(connection: Any) -> None:
            add_todo(connection)
            raise LookupError("on purpose")

        with pytest.raises(LookupError, match="on purpose"):
            await store.transact(half)
        assert await names(store) == []

    with_store(tmp_path, body)


def test_an_error_of_a_function_is_not_the_databases(tmp_path: Path) -> None:
    async def body(store: Store) -> None:
        def fail(_connection: Any) -> None:
            raise FileNotFoundError("on purpose")

        with pytest.raises(FileNotFoundError, match="on purpose"):
            await store.transact(fail)

    with_store(tmp_path, body)


def test_a_part_that_fails_is_undone_alone(tmp_path: Path) -> None:
    async def body(store: Store) -> None:
        def half(connection: Any) -> None:
            add_todo(connection, "half")
            raise LookupError("on purpose")

        def twice(connection: Any) -> None:
            for _ in range(2):
                connection.execute(tables.used_id.insert().values(id="x", expires_at=1.0))

        def work(connection: Any) -> list[Exception | None]:
            return [store.try_write(part, connection) for part in (half, add_todo, twice)]

        assert [type(error) for error in await store.transact(work)] == [StateError, type(None), StateError]
        assert await names(store) == ["x"]
        assert not await store.read(lambda connection: grant_rows.is_used(connection, "x"))

    with_store(tmp_path, body)


def test_a_caller_cancelled_at_any_moment_leaves_all_or_nothing(tmp_path: Path) -> None:
    def two(connection: Any) -> None:
        add_todo(connection)
        add_todo(connection)

    async def body(store: Store) -> None:
        await names(store)
        for number in range(40):
            caller = asyncio.create_task(store.transact(two))
            for _ in range(number):
                await asyncio.sleep(0)
            caller.cancel()
            await asyncio.wait([caller])
        await store.transact(lambda _: None)  # after all of them
        assert len(await names(store)) % 2 == 0

    with_store(tmp_path, body)


def test_transactions_that_need_the_same_alone_lose_nothing(tmp_path: Path) -> None:
    async def body(store: Store) -> None:
        other = open_store(tmp_path)
        await TodoStore(store, "a", "").create("x")
        adds = [TodoStore(each, "a", "").add(1, str(n)) for n in range(30) for each in (store, other)]
        await asyncio.gather(*adds)
        (todo,) = await TodoStore(store, "a", "").all()
        assert [step.number for step in todo.steps] == list(range(1, 61))
        await other.aclose()

    with_store(tmp_path, body)


def test_what_needs_everything_alone_runs_beside_nothing(tmp_path: Path) -> None:
    """Each adds a todo that is named by their count: two at once would give one name twice."""

    def add_one(connection: Any) -> None:
        count = connection.execute(tables.select(tables.func.count()).select_from(tables.task)).scalar_one()
        add_todo(connection, str(count))

    async def body(store: Store) -> None:
        other = open_store(tmp_path)
        for each in (store, other):
            await each.read(lambda _: None)
        both = [each.transact(add_one) for each in (store, other) for _ in range(10)]
        beside = [each.transact(add_one, alone="todos") for each in (store, other) for _ in range(10)]
        await asyncio.gather(*both)
        assert await names(store) == [str(n) for n in range(20)]
        await asyncio.gather(*beside)
        assert await names(store) == [str(n) for n in range(40)]
        await asyncio.gather(
            *(each.transact(add_one) for each in (store, other)), other.transact(add_one, alone="todos")
        )
        assert await names(store) == [str(n) for n in range(43)]
        await other.aclose()

    with_store(tmp_path, body)


def test_a_read_sees_one_moment(tmp_path: Path) -> None:
    async def body(store: Store) -> None:
        other = open_store(tmp_path)
        await other.transact(add_todo)

        def count(connection: Any) -> int:
            return int(connection.execute(tables.select(tables.func.count()).select_from(tables.task)).scalar_one())

        reads = [store.read(lambda connection: (count(connection), count(connection))) for _ in range(50)]
        writes = [other.transact(add_todo, alone=None) for _ in range(50)]
        seen = (await asyncio.gather(*reads, *writes))[:50]
        assert all(first == second for first, second in seen)
        await other.aclose()

    with_store(tmp_path, body)


def test_a_closed_store_says_so(tmp_path: Path) -> None:
    async def body(store: Store) -> None:
        await store.aclose()
        with pytest.raises(StateError, match="shutting down"):
            await names(store)

    with_store(tmp_path, body)


def test_what_waits_when_the_store_is_closed_is_still_done(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sqlite_store, "CLOSE_WITHIN", PATIENCE)
    monkeypatch.setattr(postgres_store, "CLOSE_WITHIN", PATIENCE)

    async def body(store: Store) -> None:
        todos = TodoStore(store, "a", "")
        await todos.create("first")
        waiting = [asyncio.create_task(todos.create(str(number))) for number in range(10)]
        await asyncio.sleep(0)
        await store.aclose()
        assert [todo.name for todo in await asyncio.gather(*waiting)] == [str(number) for number in range(10)]

    with_store(tmp_path, body)
    assert len(with_store(tmp_path, names)) == 11


def test_any_text_is_stored_and_found_as_it_is(tmp_path: Path) -> None:
    async def body(store: Store) -> None:
        for text in ("\0", "a\0b", "\x1a", "\x1a0\0\x1a1", "\U0001f375\uffff", ""):
            todos = TodoStore(store, text, text)
            todo = await todos.create(text)
            assert (await todos.add(todo.id, text)).steps[0].text == text
            assert [todo.name for todo in await TodoStore(store, text, "").all()] == [text]
            assert await TodoStore(store, f"{text}x", "").all() == []
            assert await Accounts(store).verify_password(text, "wrong", "") is None

    with_store(tmp_path, body)


def test_half_a_surrogate_pair_is_refused(tmp_path: Path) -> None:
    async def body(store: Store) -> None:
        for work in (TodoStore(store, "a", "").create(HALF), TodoStore(store, HALF, "").all()):
            with pytest.raises(StateError, match="refused"):
                await work
        assert await names(store) == []

    with_store(tmp_path, body)


def test_a_number_of_64_bits_is_stored(tmp_path: Path) -> None:
    async def body(store: Store) -> None:
        row = {"id": 2**63 - 1, "principal": "a", "name": "x", "completed": False}
        await store.transact(lambda connection: connection.execute(tables.task.insert().values(row)))
        assert (await TodoStore(store, "a", "").complete(2**63 - 1)).completed

    with_store(tmp_path, body)


def test_names_are_in_the_order_of_their_characters(tmp_path: Path) -> None:
    async def body(store: Store) -> None:
        for name in ("b", "Z", "a", "_"):
            row = {"name": name, "subject": name, "password": "", "made_at": 0.0}
            await store.transact(lambda connection, row=row: connection.execute(tables.account.insert().values(row)))
        assert [name for name, _ in await Accounts(store).list_accounts()] == ["Z", "_", "a", "b"]

    with_store(tmp_path, body)


def test_a_row_is_written_over_or_added_once(tmp_path: Path) -> None:
    async def body(store: Store) -> None:
        save = {"issuer": "i", "known_as": "k", "name": "ada", "email": None, "seen_at": 1.0}
        for name in ("ada", "Ada"):
            await store.transact(lambda rows, name=name: grant_rows.save_person(rows, "s", **{**save, "name": name}))
        assert (await store.read(lambda rows: grant_rows.find_person(rows, "s"))).name == "Ada"
        used = [await store.transact(lambda rows: grant_rows.mark_used(rows, "id", 1.0)) for _ in range(2)]
        assert used == [True, False]

    with_store(tmp_path, body)

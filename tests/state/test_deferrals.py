"""Deferred calls in the state database: what survives, for how long, whose it is, and how much of it there may be."""

import asyncio
import sqlite3
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

from toolgate.server.deferrals import LIFETIME, Deferral, Deferrals
from toolgate.server.state import deferrals as ledger_module
from toolgate.server.state.plans import Plan
from toolgate.server.state.processes import Processes
from toolgate.server.state.store import VERSION, StateError, Store
from toolgate.server.state.tasks import Tasks
from toolgate.tools import ToolError


class Process:
    """A server process as far as its deferrals go; `time` is what its clock shows."""

    def __init__(self, folder: Path, serves: Callable[[str], bool] = lambda principal: True) -> None:
        self.time = 1_000_000.0
        self.store = Store(folder)
        self.processes = Processes(folder / "processes")
        self.deferrals = Deferrals(self.store, self.processes, serves, now=lambda: self.time)
        self.again: list[tuple[str, bytes]] = []
        self.deferrals.again = lambda deferral, how: self.again.append((deferral.kept.id, how))

    async def completed(self, principal: str = "ada", outcome: bytes = b"{}") -> Deferral:
        deferral = await self.deferrals.begin(principal, "echo", None)
        await deferral.end("completed", None, outcome)
        return deferral

    async def status(self, id: str, principal: str = "ada") -> str | None:
        kept = (await self.deferrals.find(principal, [id])).get(id)
        return None if kept is None else kept.status

    def die(self) -> None:
        self.processes.close()
        self.store.close()


def run(folder: Path, body: Callable[[Process], Coroutine[Any, Any, None]]) -> None:
    async def bounded() -> None:
        process = Process(folder)
        try:
            await asyncio.wait_for(body(process), 20)
        finally:
            process.die()

    asyncio.run(bounded())


def test_an_outcome_is_kept_until_its_time_is_over(tmp_path: Path) -> None:
    async def body(process: Process) -> None:
        deferral = await process.completed(outcome=b'{"x":1}')
        process.time += LIFETIME - 1
        found = (await process.deferrals.find("ada", [deferral.kept.id]))[deferral.kept.id]
        assert (found.status, found.outcome) == ("completed", b'{"x":1}')
        process.time += 1
        assert await process.status(deferral.kept.id) is None

    run(tmp_path, body)


def test_what_has_expired_is_cleared_away(tmp_path: Path) -> None:
    async def body(process: Process) -> None:
        await process.completed()
        process.time += LIFETIME
        last = await process.completed()
        count = await process.store.transact(
            lambda connection: connection.exec_driver_sql("SELECT count(*) FROM deferral").scalar()
        )
        assert count == 1
        process.time += LIFETIME
        await process.deferrals.resume()  # as at the start
        assert not process.store.flagged(ledger_module.ANY, "")
        assert await process.status(last.kept.id) is None

    run(tmp_path, body)


def test_where_there_is_none_no_database_is_opened(tmp_path: Path) -> None:
    async def body(process: Process) -> None:
        await process.deferrals.resume()
        assert await process.status("x") is None
        assert not (tmp_path / "state.db").exists()

    run(tmp_path, body)


def test_nobody_finds_anothers(tmp_path: Path) -> None:
    async def body(process: Process) -> None:
        under_way = await process.deferrals.begin("ada", "echo", None)
        over = await process.completed()
        for deferral in (under_way, over):
            assert await process.status(deferral.kept.id, "bob") is None
            assert process.deferrals.here("bob", deferral.kept.id) is None
            assert await process.status(deferral.kept.id, "ada")

    run(tmp_path, body)


def test_of_those_under_way_there_is_a_limit_for_each_principal(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr(ledger_module, "MAX_LIVE", 2)

    async def body(process: Process) -> None:
        first = await process.deferrals.begin("ada", "echo", None)
        await process.deferrals.begin("ada", "echo", None)
        with pytest.raises(ToolError, match="2 tasks are under way"):
            await process.deferrals.begin("ada", "echo", None)
        await process.deferrals.begin("bob", "echo", None)
        await first.end("completed", None, b"{}")
        await process.deferrals.begin("ada", "echo", None)

    run(tmp_path, body)


def test_of_those_that_ended_the_oldest_make_room(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr(ledger_module, "MAX_ENDED", 3)
    monkeypatch.setattr(ledger_module, "MAX_BYTES", 100)

    async def body(process: Process) -> None:
        under_way = await process.deferrals.begin("ada", "echo", None)
        others = await process.completed("bob")
        ids = []
        for size in (40, 40, 10, 10, 100):
            process.time += 1
            ids.append((await process.completed(outcome=b"x" * size)).kept.id)
            if size == 10 and len(ids) == 4:  # four are too many
                assert [await process.status(id) for id in ids] == [None, "completed", "completed", "completed"]
        # and all of them together too large; the newest stays in any case
        assert [await process.status(id) for id in ids] == [None, None, None, None, "completed"]
        assert await process.status(under_way.kept.id) == "working"
        assert await process.status(others.kept.id, "bob") == "completed"

    run(tmp_path, body)


def test_a_living_process_keeps_its_own_and_a_dead_ones_are_taken_over(tmp_path: Path) -> None:
    async def body(process: Process) -> None:
        first = Process(tmp_path)
        harmless = await first.deferrals.begin("ada", "echo", b"how")
        harmful = await first.deferrals.begin("ada", "echo", None)
        await process.deferrals.resume()
        assert process.again == []
        assert await process.status(harmful.kept.id) == "working"
        first.die()
        assert await process.status(harmful.kept.id) == "failed"  # found out by asking
        assert process.again == [(harmless.kept.id, b"how")]
        assert process.deferrals.here("ada", harmless.kept.id) is not None

    run(tmp_path, body)


def test_what_is_not_served_here_is_left_to_others(tmp_path: Path) -> None:
    async def body(process: Process) -> None:
        first, picky = Process(tmp_path), Process(tmp_path, lambda principal: principal == "bob")
        id = (await first.deferrals.begin("ada", "echo", b"how")).kept.id
        first.die()
        await picky.deferrals.resume()
        assert picky.again == []
        assert await picky.status(id) == "working"
        await process.deferrals.resume()
        assert process.again == [(id, b"how")]
        picky.die()

    run(tmp_path, body)


def test_a_full_disk_is_told_before_a_task_is_and_an_outcome_is_not_lost_with_it(tmp_path: Path) -> None:
    async def limit(store: Store, pages: str) -> None:
        await store.transact(lambda connection: connection.exec_driver_sql(f"PRAGMA max_page_count = {pages}").all())

    async def body(process: Process) -> None:
        store = process.store
        deferral = await process.deferrals.begin("ada", "echo", None)
        pages = await store.transact(lambda connection: connection.exec_driver_sql("PRAGMA page_count").scalar())
        await limit(store, str(pages))
        outcome = b"x" * 100_000
        await deferral.end("completed", None, outcome)
        assert (await process.deferrals.find("ada", [deferral.kept.id]))[deferral.kept.id].outcome == outcome
        with pytest.raises(StateError, match="full"):
            while True:
                await process.deferrals.begin("bob", "echo", b"y" * 1_000)
        await limit(store, "100000")
        assert await process.status(deferral.kept.id) == "completed"  # and is written down, now that it can be
        await process.deferrals.close(0)
        assert process.deferrals.here("ada", deferral.kept.id) is None
        assert (await process.deferrals.find("ada", [deferral.kept.id]))[deferral.kept.id].outcome == outcome

    run(tmp_path, body)


def test_a_beginning_that_is_broken_off_leaves_nothing(tmp_path: Path) -> None:
    async def body(process: Process) -> None:
        await process.completed("bob")
        beginning = asyncio.ensure_future(process.deferrals.begin("ada", "echo", None))
        await asyncio.sleep(0)
        beginning.cancel()
        await asyncio.wait([beginning])
        assert beginning.cancelled()
        await process.deferrals.close(0)
        live = await process.store.transact(
            lambda connection: connection.exec_driver_sql(
                "SELECT count(*) FROM deferral WHERE principal='ada'"
            ).scalar()
        )
        assert live == 0

    run(tmp_path, body)


def test_a_database_of_the_first_version_is_brought_up_and_keeps_what_it_has(tmp_path: Path) -> None:
    async def before(process: Process) -> None:
        await Tasks(process.store, "ada", "").create("kept")
        await Plan(process.store, "ada", "").enter("goal", None)

    run(tmp_path, before)
    with sqlite3.connect(tmp_path / "state.db") as connection:
        connection.execute("DROP TABLE deferral")
        connection.execute("PRAGMA user_version = 1")
    connection.close()

    async def after(process: Process) -> None:
        deferral = await process.completed()
        assert await process.status(deferral.kept.id) == "completed"
        assert [task.name for task in await Tasks(process.store, "ada", "").all()] == ["kept"]

    run(tmp_path, after)
    connection = sqlite3.connect(tmp_path / "state.db")
    assert connection.execute("PRAGMA user_version").fetchone() == (VERSION,)
    connection.close()

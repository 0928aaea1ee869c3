"""Tasks in the state database: persistence, lifetime, ownership and limits."""

import asyncio
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

from tests.server.state.each_store import ON_EACH, ON_SQLITE, open_store
from toolgate.server.base.errors import StateError
from toolgate.server.calls.tasks import LIFETIME, CallTask, CallTasks
from toolgate.server.state.rows import tasks as ledger_module
from toolgate.server.state.store import Store
from toolgate.tools import ToolError

pytestmark = ON_EACH


class Process:
    """The tasks of one server process; `time` is what its clock shows."""

    def __init__(self, folder: Path, serves: Callable[[str], bool] = lambda principal: True, server: str = "") -> None:
        self.time = 1_000_000.0
        self.store = open_store(folder)
        self.processes = self.store.open_processes()
        self.deferrals = CallTasks(self.store, self.processes, serves, lambda: self.time, server)
        self.again: list[tuple[str, bytes]] = []
        self.deferrals.rerun = lambda deferral, how: self.again.append((deferral.kept.id, how))

    async def completed(self, principal: str = "ada", outcome: bytes = b"{}") -> CallTask:
        deferral = await self.deferrals.begin(principal, "echo", None)
        await deferral.end("completed", None, outcome)
        return deferral

    async def status(self, id: str, principal: str = "ada") -> str | None:
        kept = (await self.deferrals.find(principal, [id])).get(id)
        await asyncio.sleep(0)  # that it was read is written down beside, before whatever comes next
        return None if kept is None else kept.status

    async def die(self, witness: "Process | None" = None) -> None:
        """End, and wait until `witness` can see it: PostgreSQL learns of a closed connection a moment later."""
        name = self.processes.own_name() if witness is not None else ""
        self.processes.close()
        await self.store.aclose()
        while witness is not None and not await witness.processes.find_dead([name]):
            await asyncio.sleep(0.01)


def run(folder: Path, body: Callable[[Process], Coroutine[Any, Any, None]]) -> None:
    async def bounded() -> None:
        process = Process(folder)
        try:
            await asyncio.wait_for(body(process), 20)
        finally:
            await process.die()

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
        assert await process.status(last.kept.id) is None

    run(tmp_path, body)


@ON_SQLITE
def test_where_there_is_none_no_database_is_opened(tmp_path: Path) -> None:
    async def body(process: Process) -> None:
        await process.deferrals.resume()
        assert await process.status("x") is None
        assert not (tmp_path / "state.db").exists()

    run(tmp_path, body)


def test_a_principal_finds_its_own_tasks_only(tmp_path: Path) -> None:
    async def body(process: Process) -> None:
        under_way = await process.deferrals.begin("ada", "echo", None)
        over = await process.completed()
        for deferral in (under_way, over):
            assert await process.status(deferral.kept.id, "bob") is None
            assert process.deferrals.find_running("bob", deferral.kept.id) is None
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


def test_of_those_that_were_read_the_oldest_make_room(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr(ledger_module, "MAX_ENDED", 3)
    monkeypatch.setattr(ledger_module, "MAX_BYTES", 100)

    async def body(process: Process) -> None:
        under_way = await process.deferrals.begin("ada", "echo", None)
        others = await process.completed("bob")
        ids = []
        for size in (40, 40, 10, 10):
            process.time += 1
            ids.append((await process.completed(outcome=b"x" * size)).kept.id)
            assert await process.status(ids[-1]) == "completed"
        assert [await process.status(id) for id in ids] == [None, "completed", "completed", "completed"]
        process.time += 1
        ids.append((await process.completed(outcome=b"x" * 100)).kept.id)
        assert [await process.status(id) for id in ids] == [None, None, None, None, "completed"]
        assert await process.status(under_way.kept.id) == "working"
        assert await process.status(others.kept.id, "bob") == "completed"

    run(tmp_path, body)


def test_an_unread_result_stays_and_a_result_without_room_fails(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr(ledger_module, "MAX_BYTES", 200)

    async def body(process: Process) -> None:
        unread, told = [await process.deferrals.begin("ada", "echo", None) for _ in range(2)]
        await unread.end("completed", None, b"x" * 90)
        process.deferrals.notify = lambda kept: True  # somebody listens
        await told.end("completed", None, b"x" * 90)
        process.deferrals.notify = lambda kept: False
        fits = await process.completed(outcome=b"x" * 90)
        late = await process.completed(outcome=b"x" * 90)
        assert late.kept.status == "failed"  # as it is told
        for id in (late.kept.id, unread.kept.id, fits.kept.id, told.kept.id):
            found = await process.deferrals.find("ada", [id])
            assert [(kept.status, kept.outcome) for kept in found.values()] == {
                late.kept.id: [("failed", late.kept.outcome)],
                told.kept.id: [],
            }.get(id, [("completed", b"x" * 90)])
        assert late.kept.outcome is not None and b"too much is kept" in late.kept.outcome
        assert (await process.completed(outcome=b"x" * 90)).kept.status == "completed"  # they have been read

    run(tmp_path, body)


def test_a_principal_with_too_many_unread_results_starts_no_more_tasks(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr(ledger_module, "MAX_ENDED", 2)

    async def body(process: Process) -> None:
        cancelled = await process.deferrals.begin("ada", "echo", None)
        await process.deferrals.cancel(cancelled)  # whoever did knows how it ended
        first = await process.completed()
        await process.completed()
        with pytest.raises(ToolError, match="2 tasks have ended unread"):
            await process.deferrals.begin("ada", "echo", None)
        assert await process.status(first.kept.id) == "completed"
        await process.deferrals.begin("ada", "echo", None)

    run(tmp_path, body)


def test_what_ends_while_it_is_looked_up_is_found_as_it_ended(tmp_path: Path) -> None:
    async def body(process: Process) -> None:
        deferral = await process.deferrals.begin("ada", "echo", None)
        look = process.deferrals.rows.find

        async def slowly(*given: Any) -> Any:
            await deferral.end("completed", None, b"{}")
            assert process.deferrals.find_running("ada", deferral.kept.id) is None
            return await look(*given)

        process.deferrals.rows.find = slowly  # type: ignore[method-assign]
        found = await process.deferrals.find("ada", [deferral.kept.id, "another's"])
        assert [(kept.id, kept.status) for kept in found.values()] == [(deferral.kept.id, "completed")]

    run(tmp_path, body)


def test_a_full_database_ends_no_task_in_the_middle_of_its_questions(tmp_path: Path) -> None:
    async def body(process: Process) -> None:
        deferral = await process.deferrals.begin("ada", "echo", b"how")
        save = process.deferrals.rows.save

        async def full(*given: Any) -> Any:
            raise StateError("full")

        async def ask(number: int) -> Any:
            asking = asyncio.ensure_future(deferral.ask({"who": {"number": number}}, None))
            while not deferral.outstanding and not asking.done():
                await asyncio.sleep(0)
            await deferral.answer(dict.fromkeys(deferral.outstanding, number))
            return await asking

        process.deferrals.rows.save = full  # type: ignore[method-assign]
        with pytest.raises(StateError):  # it could be run again, and ask once more what was answered
            await ask(0)
        process.deferrals.rows.save = save  # type: ignore[method-assign]
        assert await ask(1) == {"who": 1}
        process.deferrals.rows.save = full  # type: ignore[method-assign]
        assert await ask(2) == {"who": 2}
        await process.deferrals.close(0)

    run(tmp_path, body)


def test_tasks_of_a_server_with_other_options_are_left_to_their_own_kind(tmp_path: Path) -> None:
    async def body(process: Process) -> None:
        first, same = Process(tmp_path, server="a"), Process(tmp_path, server="a")
        harmless = await first.deferrals.begin("ada", "echo", b"how")
        harmful = await first.deferrals.begin("ada", "echo", None)
        await first.die(process)
        await process.deferrals.resume()
        assert await process.status(harmful.kept.id) == "working"
        assert process.again == []
        assert await same.status(harmful.kept.id) == "failed"
        assert same.again == [(harmless.kept.id, b"how")]
        process.time += LIFETIME
        assert await process.status(harmless.kept.id) is None
        await same.die()

    run(tmp_path, body)


def test_a_living_process_keeps_its_own_and_a_dead_ones_are_taken_over(tmp_path: Path) -> None:
    async def body(process: Process) -> None:
        first = Process(tmp_path)
        harmless = await first.deferrals.begin("ada", "echo", b"how")
        harmful = await first.deferrals.begin("ada", "echo", None)
        await process.deferrals.resume()
        assert process.again == []
        assert await process.status(harmful.kept.id) == "working"
        await first.die(process)
        assert await process.status(harmful.kept.id) == "failed"  # found out by asking
        assert process.again == [(harmless.kept.id, b"how")]
        assert process.deferrals.find_running("ada", harmless.kept.id) is not None

    run(tmp_path, body)


def test_what_is_not_served_here_is_left_to_others(tmp_path: Path) -> None:
    async def body(process: Process) -> None:
        first, picky = Process(tmp_path), Process(tmp_path, lambda principal: principal == "bob")
        id = (await first.deferrals.begin("ada", "echo", b"how")).kept.id
        await first.die(process)
        await picky.deferrals.resume()
        assert picky.again == []
        assert await picky.status(id) == "working"
        await process.deferrals.resume()
        assert process.again == [(id, b"how")]
        await picky.die()

    run(tmp_path, body)


@ON_SQLITE
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
        assert process.deferrals.find_running("ada", deferral.kept.id) is None
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

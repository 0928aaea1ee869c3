"""Todos and plans in the state: ownership and persistence."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from tests.server.state.each_store import ON_EACH, ON_SQLITE, open_store, with_store
from toolgate.server.state import flags
from toolgate.server.state.rows import todos as tasks_module
from toolgate.server.state.rows.plans import PlanStore
from toolgate.server.state.rows.todos import TodoStore
from toolgate.server.state.store import Store
from toolgate.tools import ToolError
from toolgate.tools.api.context.services import PlanState, Todo, TodoStep

pytestmark = ON_EACH


def test_tasks_steps_and_the_current_one_survive_a_restart(tmp_path: Path) -> None:
    async def before(store: Store) -> None:
        tasks = TodoStore(store, "a", "session-1")
        await tasks.create("first")
        await tasks.create("second")
        await tasks.add(1, "step one")
        await tasks.add(1, "step two")
        await tasks.complete(1, 1)
        await tasks.switch(1)

    async def after(store: Store) -> Any:
        tasks = TodoStore(store, "a", "session-2")
        return await tasks.all(), await tasks.current()

    with_store(tmp_path, before)
    assert with_store(tmp_path, after) == (
        [
            Todo(1, "first", True, False, [TodoStep(1, "step one", True), TodoStep(2, "step two", False)]),
            Todo(2, "second", False, False, []),
        ],
        1,
    )


def test_the_current_task_is_the_sessions_and_only_then_the_principals(tmp_path: Path) -> None:
    async def body(store: Store) -> None:
        one, two, none = (TodoStore(store, "a", session) for session in ("one", "two", ""))
        await one.create("first")
        await two.create("second")
        assert (await one.current(), await two.current(), await none.current()) == (1, 2, 2)
        await none.switch(1)
        assert (await one.current(), await two.current(), await none.current()) == (1, 2, 1)
        assert await TodoStore(store, "a", "new").current() == 1
        assert [task.id for task in await two.all() if task.current] == [2]

    with_store(tmp_path, body)


@pytest.mark.parametrize("task_id", [1, 0, -1, 99, 2**63, 10**40])
def test_an_id_that_is_not_the_callers_is_unknown(tmp_path: Path, task_id: int) -> None:
    async def body(store: Store) -> None:
        await TodoStore(store, "a", "").create("a's")
        stranger = TodoStore(store, "b", "")
        for attempt in (stranger.add(task_id, "x"), stranger.complete(task_id), stranger.switch(task_id)):
            with pytest.raises(KeyError):
                await attempt
        assert await stranger.all() == []
        assert await stranger.current() is None

    with_store(tmp_path, body)


def test_an_unknown_step_is_a_lookup_error_but_no_unknown_task(tmp_path: Path) -> None:
    async def body(store: Store) -> None:
        tasks = TodoStore(store, "a", "")
        await tasks.create("x")
        with pytest.raises(LookupError) as caught:
            await tasks.complete(1, 1)
        assert not isinstance(caught.value, KeyError)

    with_store(tmp_path, body)


def test_two_clients_at_once_lose_no_step(tmp_path: Path) -> None:
    async def body(store: Store) -> None:
        other = open_store(store.folder)
        try:
            await TodoStore(store, "a", "").create("x")
            adds = [TodoStore(use, "a", "").add(1, f"{n}") for n in range(20) for use in (store, other)]
            await asyncio.gather(*adds)
            (task,) = await TodoStore(store, "a", "").all()
            assert [step.number for step in task.steps] == list(range(1, 41))
            assert sorted(step.text for step in task.steps) == sorted([f"{n}" for n in range(20)] * 2)
        finally:
            await other.aclose()

    with_store(tmp_path, body)


def test_a_step_added_to_a_completed_task_opens_it_again(tmp_path: Path) -> None:
    async def body(store: Store) -> None:
        tasks = TodoStore(store, "a", "")
        await tasks.create("x")
        assert (await tasks.complete(1)).completed
        assert not (await tasks.add(1, "one more")).completed

    with_store(tmp_path, body)


def test_tasks_and_steps_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for limit in ("MAX_OPEN", "MAX_DONE", "MAX_STEPS"):
        monkeypatch.setattr(tasks_module, limit, 2)

    async def body(store: Store) -> None:
        tasks = TodoStore(store, "a", "")
        for name in ("one", "two"):
            await tasks.create(name)
            await tasks.add(1, name)
        with pytest.raises(ToolError, match="2 open tasks"):
            await tasks.create("three")
        with pytest.raises(ToolError, match="2 steps"):
            await tasks.add(1, "three")
        for number in range(1, 5):
            await tasks.complete(number)
            await tasks.create(f"more {number}")
        assert [task.id for task in await tasks.all()] == [3, 4, 5, 6]  # the oldest completed ones went
        await TodoStore(store, "b", "").create("b's is its own")

    with_store(tmp_path, body)


def test_the_current_tasks_of_old_sessions_are_forgotten(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tasks_module, "FORGET", -1.0)

    async def body(store: Store) -> int:
        for number in range(5):
            await TodoStore(store, "a", f"session-{number}").create("x")
        return await store.transact(
            lambda connection: int(connection.exec_driver_sql("SELECT count(*) FROM focus").scalar_one())
        )

    assert with_store(tmp_path, body) == 2


def test_the_principals_plan_is_seen_by_all_and_survives_a_restart(tmp_path: Path) -> None:
    async def before(store: Store) -> PlanState:
        return await PlanStore(store, "a", "").enter("tidy up", "plan.md")

    async def after(store: Store) -> Any:
        plan = PlanStore(store, "a", "")
        return await plan.active(), await plan.state(), await PlanStore(store, "b", "").state()

    entered = with_store(tmp_path, before)
    nothing = PlanState(False, "", None, None)
    assert (entered.active, entered.goal, entered.plan_file) == (True, "tidy up", "plan.md")
    assert with_store(tmp_path, after) == (True, entered, nothing)


@pytest.mark.parametrize("session", ["", "session-1"])
def test_a_plan_that_ended_stays_readable_until_it_is_reset(tmp_path: Path, session: str) -> None:
    async def body(store: Store) -> None:
        plan = PlanStore(store, "a", session)
        entered = await plan.enter("tidy up", None)
        ended = await plan.exit("there.md")
        assert ended == PlanState(False, "tidy up", "there.md", entered.started_at)
        assert await plan.state() == ended
        assert not await plan.active()
        assert await plan.reset() == PlanState(False, "", None, None)
        assert await plan.state() == PlanState(False, "", None, None)
        assert await plan.exit("there.md") == PlanState(False, "", None, None)

    with_store(tmp_path, body)


@ON_SQLITE
def test_a_sessions_plan_is_its_own_and_touches_no_database(tmp_path: Path) -> None:
    async def body(store: Any) -> None:
        plan = PlanStore(store, "a", "session-1")
        await plan.enter("tidy up", None)
        assert await plan.active()
        for other in (PlanStore(store, "a", "session-2"), PlanStore(store, "a", "")):
            assert not await other.active()
            assert not (await other.state()).active
            await other.reset()
        assert not store.path.exists()

    with_store(tmp_path, body)


@ON_SQLITE
def test_an_ended_plan_costs_the_others_no_database(tmp_path: Path) -> None:
    async def ends(store: Store) -> None:
        plan = PlanStore(store, "a", "")
        await plan.enter("tidy up", None)
        await plan.exit()
        assert not store.has_flag(flags.PLAN_ACTIVE, "a")
        assert store.has_flag(flags.PLAN_EXISTS, "a")

    with_store(tmp_path, ends)
    (tmp_path / "state.db").write_bytes(b"would fail when opened")

    async def asks(store: Store) -> bool:
        return await PlanStore(store, "a", "").active()

    assert with_store(tmp_path, asks) is False


@ON_SQLITE
def test_a_flag_left_over_by_a_crash_does_no_harm(tmp_path: Path) -> None:
    async def body(store: Store) -> None:
        for flag in (flags.PLAN_ACTIVE, flags.PLAN_EXISTS):
            await store.transact(lambda _, flag=flag: store.set_flag(flag, "a", True))
        plan = PlanStore(store, "a", "")
        assert not await plan.active()
        assert await plan.state() == PlanState(False, "", None, None)
        await plan.reset()
        assert not store.has_flag(flags.PLAN_EXISTS, "a")

    with_store(tmp_path, body)

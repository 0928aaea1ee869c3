"""TaskManager, against the real state."""

from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.tools.fake_context import FakeServices, data, refused, run, said
from toolgate.tools.builtin import todos as tasks_module
from toolgate.tools.builtin.todos import task_manager


def row(task_id: int, name: str, *steps: dict[str, Any], current: bool = False, completed: bool = False) -> Any:
    return {"task_id": task_id, "name": name, "current": current, "completed": completed, "steps": list(steps)}


def step(number: int, text: str, completed: bool = False) -> dict[str, Any]:
    return {"step_id": number, "text": text, "completed": completed}


def test_a_task_from_its_first_step_to_its_end(tmp_path: Path) -> None:
    async def body() -> None:
        async with FakeServices(tmp_path) as lent:
            made = await lent.call(task_manager, action="create", query="", text="ship it")
            assert data(made) == {
                "task_id": 1,
                "tasks": [row(1, "ship it", current=True)],
                "note": "Task 1 created, now current: ship it",
            }
            await lent.call(task_manager, action="add", query="", text="test")
            added = await lent.call(task_manager, action="add", query="", text="release")
            assert said(added) == "Step 2 added to task 1 (ship it)."
            done = await lent.call(task_manager, action="complete", query="", step_id=1)
            assert said(done) == "Step 1 of task 1 completed. 1 step to go."
            expected = row(1, "ship it", step(1, "test", True), step(2, "release"), current=True)
            assert data(done) == {"task_id": 1, "tasks": [expected], "note": said(done)}
            listed = await lent.call(task_manager, action="list", query="")
            assert data(listed) == {"task_id": 1, "tasks": [expected]}
            assert said(listed) == "[ ] task 1: ship it (current)\n    [x] 1. test\n    [ ] 2. release"
            ended = await lent.call(task_manager, action="complete", query="")
            assert said(ended) == "Task 1 completed (1 step left open): ship it"
            assert said(await lent.call(task_manager, action="pending", query="")) == "There is no open task."

    run(body())


def test_a_step_for_a_completed_task_opens_it_and_says_so(tmp_path: Path) -> None:
    async def body() -> None:
        async with FakeServices(tmp_path) as lent:
            await lent.call(task_manager, action="create", query="", text="ship it")
            await lent.call(task_manager, action="complete", query="")
            added = await lent.call(task_manager, action="add", query="ship", text="one more")
            assert said(added) == "Step 1 added to task 1 (ship it), which is open again."
            assert data(added)["tasks"] == [row(1, "ship it", step(1, "one more"), current=True)]
            again = await lent.call(task_manager, action="add", query="ship", text="two more")
            assert said(again) == "Step 2 added to task 1 (ship it)."

    run(body())


def test_a_name_may_come_in_query_and_text_goes_first(tmp_path: Path) -> None:
    async def body() -> None:
        async with FakeServices(tmp_path) as lent:
            await lent.call(task_manager, action="create", query="from query")
            await lent.call(task_manager, action="create", query="not this", text="from\n text")
            listed = data(await lent.call(task_manager, action="list", query=""))
            assert [task["name"] for task in listed["tasks"]] == ["from query", "from text"]

    run(body())


def test_query_finds_a_task_by_name_and_task_id_goes_first(tmp_path: Path) -> None:
    async def body() -> None:
        async with FakeServices(tmp_path) as lent:
            for name in ("Fix parser", "fix parser tests", "Docs"):
                await lent.call(task_manager, action="create", query="", text=name)
            exact = await lent.call(task_manager, action="add", query="fix parser", text="x")
            assert data(exact)["task_id"] == 1
            part = await lent.call(task_manager, action="switch", query="doc")
            assert data(part)["task_id"] == 3
            both = await lent.call(task_manager, action="complete", query="docs", task_id=2)
            assert data(both)["task_id"] == 2
            open_first = await lent.call(task_manager, action="switch", query="fix")
            assert data(open_first)["task_id"] == 1

    run(body())


def test_an_open_task_is_meant_rather_than_a_completed_one(tmp_path: Path) -> None:
    async def body() -> None:
        async with FakeServices(tmp_path) as lent:
            for name in ("docs", "Write the docs", "lamp"):
                await lent.call(task_manager, action="create", query="", text=name)
            await lent.call(task_manager, action="complete", query="", task_id=1)
            await lent.call(task_manager, action="complete", query="", task_id=3)
            assert data(await lent.call(task_manager, action="switch", query="docs"))["task_id"] == 2
            assert data(await lent.call(task_manager, action="add", query="LAMP", text="a bulb"))["task_id"] == 3

    run(body())


def test_lists_are_filtered_by_query_in_names_and_steps(tmp_path: Path) -> None:
    async def body() -> None:
        async with FakeServices(tmp_path) as lent:
            for name in ("alpha", "beta", "gamma"):
                await lent.call(task_manager, action="create", query="", text=name)
            await lent.call(task_manager, action="add", query="", task_id=1, text="ask about BETA")
            await lent.call(task_manager, action="complete", query="", task_id=2)

            async def ids(action: str, query: str) -> list[int]:
                listed = data(await lent.call(task_manager, action=action, query=query))
                assert listed["task_id"] == 3  # the current one, listed or not
                return [task["task_id"] for task in listed["tasks"]]

            assert await ids("list", "beta") == [1, 2]
            assert await ids("pending", "beta") == [1]
            assert await ids("pending", "") == [1, 3]
            assert await ids("list", "nowhere") == []

    run(body())


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ({"action": "create", "query": " "}, "create needs the task's name in text"),
        ({"action": "create", "query": "", "text": "x" * 1001}, "1000 are allowed"),
        ({"action": "add", "query": ""}, "add needs the step in text"),
        ({"action": "add", "query": "", "text": "x" * 1001}, "1000 are allowed"),
        ({"action": "add", "query": "", "text": "x", "task_id": 9}, "there is no task 9"),
        ({"action": "add", "query": "nowhere", "text": "x"}, "no task is named 'nowhere'"),
        ({"action": "complete", "query": "", "step_id": 7}, "no step 7: its steps are 1 to 2"),
        ({"action": "complete", "query": "", "step_id": 0}, "no step 0"),
        ({"action": "complete", "query": "", "step_id": 1, "task_id": 1}, "has no steps"),
        ({"action": "complete", "query": "", "task_id": 0}, "there is no task 0"),
        ({"action": "complete", "query": "", "task_id": 10**30}, "there is no task 10000000000000000000…: list"),
        ({"action": "complete", "query": "", "task_id": 1, "step_id": 10**30}, "has no steps"),
        ({"action": "complete", "query": "", "step_id": -(10**30)}, "no step -1000000000000000000…: its"),
        ({"action": "complete", "query": "", "task_id": 1e308}, "there is no task 1000"),
        ({"action": "complete", "query": "same"}, "names 2 tasks: 2 (same a), 3 (same b); give task_id"),
        ({"action": "switch", "query": ""}, "switch needs task_id"),
        ({"action": "switch", "query": "", "task_id": -1}, "there is no task -1"),
        ({"action": "list", "query": "", "task_id": 9}, "there is no task 9"),
        ({"action": "list"}, "query"),
        ({"action": "destroy", "query": ""}, "action"),
    ],
)
def test_an_error_names_what_would_be_right(tmp_path: Path, arguments: dict[str, Any], told: str) -> None:
    async def body() -> None:
        async with FakeServices(tmp_path) as lent:
            for name in ("one", "same a", "same b"):
                await lent.call(task_manager, action="create", query="", text=name)
            for text in ("x", "y"):
                await lent.call(task_manager, action="add", query="", text=text)
            before = data(await lent.call(task_manager, action="list", query=""))
            assert told in refused(await lent.call(task_manager, **arguments))
            assert data(await lent.call(task_manager, action="list", query="")) == before

    run(body())


def test_an_action_ignores_arguments_it_does_not_use(tmp_path: Path) -> None:
    async def body() -> None:
        async with FakeServices(tmp_path) as lent:
            made = await lent.call(task_manager, action="create", query="", text="one", task_id=0, step_id=0)
            assert data(made)["task_id"] == 1
            added = await lent.call(task_manager, action="add", query="", text="x", step_id=0)
            assert len(data(added)["tasks"][0]["steps"]) == 1
            for action in ("list", "pending"):
                listed = await lent.call(task_manager, action=action, query="", step_id=0, text="x")
                assert len(data(listed)["tasks"]) == 1
            done = await lent.call(task_manager, action="complete", query="", step_id=1, text="x")
            assert data(done)["tasks"][0]["steps"][0]["completed"] is True

    run(body())


@pytest.mark.parametrize("arguments", [{"action": "add", "text": "x"}, {"action": "complete"}])
def test_without_a_current_task_one_must_be_named(tmp_path: Path, arguments: dict[str, Any]) -> None:
    async def body() -> None:
        async with FakeServices(tmp_path) as lent:
            assert "none is current" in refused(await lent.call(task_manager, query="", **arguments))
            nothing = await lent.call(task_manager, action="list", query="")
            assert said(nothing) == "There is no task."
            assert data(nothing) == {"task_id": None, "tasks": [], "note": "There is no task."}

    run(body())


def test_another_principals_tasks_do_not_exist(tmp_path: Path) -> None:
    async def body() -> None:
        async with FakeServices(tmp_path, "a") as mine, FakeServices(tmp_path, "b") as theirs:
            await mine.call(task_manager, action="create", query="", text="secret")
            assert data(await theirs.call(task_manager, action="list", query=""))["tasks"] == []
            told = refused(await theirs.call(task_manager, action="complete", query="", task_id=1))
            assert told == refused(await theirs.call(task_manager, action="complete", query="", task_id=2)).replace(
                "2", "1"
            )

    run(body())


def test_a_long_list_gives_the_newest_and_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tasks_module, "MAX_LISTED", 2)

    async def body() -> None:
        async with FakeServices(tmp_path) as lent:
            for number in range(1, 6):
                await lent.call(task_manager, action="create", query="", text=f"task {number}")
            listed = await lent.call(task_manager, action="list", query="")
            assert [task["task_id"] for task in data(listed)["tasks"]] == [4, 5]
            assert said(listed).endswith("… and 3 older ones: narrow it down with query.")

    run(body())


def test_a_list_is_bounded_in_characters_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tasks_module, "MAX_CHARACTERS", 900)

    async def body() -> None:
        async with FakeServices(tmp_path) as lent:
            for _ in range(4):
                await lent.call(task_manager, action="create", query="", text="x" * 400)
            assert len(data(await lent.call(task_manager, action="list", query=""))["tasks"]) == 2

    run(body())


def test_the_schema_is_the_contracts() -> None:
    properties = task_manager.input["properties"]
    types = {name: declared["type"] for name, declared in properties.items()}
    assert types == {
        "action": "string",
        "query": "string",
        "task_id": "integer",
        "step_id": "integer",
        "text": "string",
    }
    assert properties["action"]["enum"] == ["create", "add", "complete", "list", "pending", "switch"]
    assert task_manager.input["required"] == ["action", "query"]
    assert len(task_manager.description.encode()) + len(msgspec.json.encode(task_manager.input)) < 1000

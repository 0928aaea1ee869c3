"""PlanMode, against the real state."""

import re
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.tools.fake_context import FakeServices, data, refused, run, said
from toolgate.tools.builtin.plan import plan_mode
from toolgate.tools.builtin.todos import task_manager

STAMP = r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ"


@pytest.mark.parametrize("session", ["", "s"])
def test_a_plan_is_entered_reported_and_left(tmp_path: Path, session: str) -> None:
    async def body() -> None:
        async with FakeServices(tmp_path, session=session) as lent:
            nothing = {"active": False, "goal": "", "plan_file": None, "started_at": None}
            off = await lent.call(plan_mode, action="status")
            assert (said(off), data(off)) == ("Plan mode is off.", {**nothing, "note": "Plan mode is off."})
            on = await lent.call(plan_mode, action="enter", goal="tidy up\nall")
            assert said(on) == "Plan mode is on: tidy up all. Leave it with exit."
            started = data(on)["started_at"]
            assert re.fullmatch(STAMP, started)
            shown = {"active": True, "goal": "tidy up\nall", "plan_file": None, "started_at": started}
            assert data(on) == {**shown, "note": said(on)}
            status = said(await lent.call(plan_mode, action="status"))
            assert re.fullmatch(r"Plan mode is on for \d+ s. Goal: tidy up\nall", status)
            as_json = await lent.call(plan_mode, action="json")
            assert msgspec.json.decode(said(as_json)) == shown
            assert data(as_json) == {**shown, "note": None}
            ended = await lent.call(plan_mode, action="exit")
            assert re.fullmatch(r"Plan mode is off after \d+ s\.", said(ended))
            assert data(ended) == {**shown, "active": False, "note": said(ended)}
            reset = await lent.call(plan_mode, action="reset")
            assert data(reset) == {**nothing, "note": "Plan mode is off, and the plan is forgotten."}
            assert data(await lent.call(plan_mode, action="json")) == {**nothing, "note": None}

    run(body())


def test_exit_writes_the_goal_and_the_open_tasks(tmp_path: Path) -> None:
    async def body() -> None:
        async with FakeServices(tmp_path) as lent:
            for name in ("done already", "ship\nit"):
                await lent.call(task_manager, action="create", query="", text=name)
            for text in ("test", "release"):
                await lent.call(task_manager, action="add", query="", text=text)
            await lent.call(task_manager, action="complete", query="", step_id=1)
            await lent.call(task_manager, action="complete", query="", task_id=1)
            await lent.call(plan_mode, action="enter", goal="a release", plan_file="wrong.md")
            ended = await lent.call(plan_mode, action="exit", plan_file="plan.md")
            assert said(ended).endswith(" The plan is in plan.md.")
            assert data(ended)["plan_file"] == "plan.md"
            assert data(await lent.call(plan_mode, action="json"))["plan_file"] == "plan.md"

    run(body())
    assert not (tmp_path / "wrong.md").exists()
    expected = (
        f"# Plan\n\na release\n\n- Started: {STAMP}\n- Ended: {STAMP}\n- Took: \\d+ s\n\n## Tasks\n\n"
        r"- \[ \] ship it\n    - \[x\] test\n    - \[ \] release\n"
    )
    assert re.fullmatch(expected, (tmp_path / "plan.md").read_text())


def test_the_file_given_on_enter_is_the_one_written(tmp_path: Path) -> None:
    async def body() -> None:
        async with FakeServices(tmp_path) as lent:
            await lent.call(plan_mode, action="enter", goal="x", plan_file="plan.md")
            assert "written to plan.md" in said(await lent.call(plan_mode, action="status"))
            await lent.call(plan_mode, action="exit")

    run(body())
    assert "No open tasks." in (tmp_path / "plan.md").read_text()


def test_a_plan_that_cannot_be_written_stays_active(tmp_path: Path) -> None:
    async def body() -> None:
        async with FakeServices(tmp_path) as lent:
            await lent.call(plan_mode, action="enter", goal="x")
            (tmp_path / "folder.md").mkdir()
            for file in ("../plan.md", "folder.md"):
                failed = await lent.call(plan_mode, action="exit", plan_file=file)
                assert file in refused(failed)
            assert data(await lent.call(plan_mode, action="json"))["active"] is True

    run(body())


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ({"action": "enter"}, "enter needs the goal"),
        ({"action": "enter", "goal": "  "}, "enter needs the goal"),
        ({"action": "enter", "goal": "x" * 4001}, "4000 are allowed"),
        ({"action": "enter", "goal": "x", "plan_file": "plan.sh"}, "does not end in .md"),
        ({"action": "enter", "goal": "x", "plan_file": "../out.md"}, "goes up with .."),
        ({"action": "enter", "goal": "x", "plan_file": "/out.md"}, "outside the workspace"),
        ({"action": "enter", "goal": "x", "plan_file": "a\0b.md"}, "U+0000"),
        ({"action": "exit"}, "no plan is active: enter one first"),
        ({"action": "exit", "plan_file": "plan.md"}, "no plan is active"),
        ({"action": "pause"}, "action"),
    ],
)
def test_a_wrong_argument_is_an_error_that_names_it(tmp_path: Path, arguments: dict[str, Any], told: str) -> None:
    async def body() -> None:
        async with FakeServices(tmp_path) as lent:
            assert told in refused(await lent.call(plan_mode, **arguments))
            assert not (await lent.belongings.plan.state()).active

    run(body())
    assert not (tmp_path / "plan.md").exists()


def test_a_second_enter_is_refused_and_changes_nothing(tmp_path: Path) -> None:
    async def body() -> None:
        async with FakeServices(tmp_path) as lent:
            first = data(await lent.call(plan_mode, action="enter", goal="first"))
            again = await lent.call(plan_mode, action="enter", goal="second")
            assert "active already (first): exit or reset it first" in refused(again)
            state = data(await lent.call(plan_mode, action="json"))
            assert state == {**first, "note": None}

    run(body())


def test_the_schema_is_the_contracts() -> None:
    properties = plan_mode.input["properties"]
    assert {name: declared["type"] for name, declared in properties.items()} == dict.fromkeys(
        ("action", "goal", "plan_file"), "string"
    )
    assert set(properties["action"]["enum"]) == {"enter", "exit", "status", "json", "reset"}
    assert plan_mode.input["required"] == ["action"]

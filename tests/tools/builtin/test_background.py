"""Background tasks, through Tool.run, on real processes."""

import os
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.clients.raw_client import Server
from tests.tools.shell_commands import (
    BOUND,
    Caller,
    on_caller,
    text_of,
    until,
)
from toolgate.tools.api.context.services import Settings

Start = Callable[..., Server]


def test_a_command_held_too_long_goes_on_as_a_background_task(tmp_path: Path) -> None:
    async def body(me: Caller) -> None:
        me.settings = Settings(hold=1.0)
        output = await me.bash("echo one; until [ -e go ]; do sleep 0.01; done; echo two; exit 4")
        task = output.structured["task_id"]
        assert not output.is_error
        assert output.structured["exit_code"] is None and not output.structured["timed_out"]
        assert text_of(output) == (
            "one\nstill running after 1 s; goes on, with its timeout of 30000 ms, as "
            f"background task {task}: ReadBgOutput reads on, KillBgTask ends it"
        )
        read = (await me.call("ReadBgOutput", task_id=task)).structured
        assert read == {"task_id": task, "output": "", "status": "running", "exit_code": None, "truncated": False} | {
            "note": read["note"]
        }
        assert re.fullmatch(rf"\[task {task} is running for [\d.]+ s\]", read["note"])
        (me.workspace.root / "go").touch()
        assert await me.workspace.wait(task, BOUND)
        (notice,) = me.notices.take().values()
        assert re.fullmatch(
            rf"background task {task} \(echo one; until .*…\) exited with code 4 after [\d.]+ s; "
            "read it with ReadBgOutput",
            notice.text,
        )
        read = (await me.call("ReadBgOutput", task_id=task)).structured
        assert read == {"task_id": task, "output": "two\n", "status": "exited", "exit_code": 4, "truncated": False} | {
            "note": read["note"]
        }
        assert re.fullmatch(rf"\[task {task} exited with code 4 after [\d.]+ s\]", read["note"])

    on_caller(body, tmp_path)


def test_while_planning_a_long_command_names_no_tool_that_the_plan_refuses(start: Start) -> None:
    server = start("--hold", "3")
    server.text("PlanMode", {"action": "enter", "goal": "look"})
    late = server.call("Bash", {"command": "sleep 60", "timeout": 300})
    assert late["isError"] and late["content"][0]["text"] == (
        "timed out after 300 ms; for what takes longer use a larger timeout (at most 600000 ms), or BackgroundBash, "
        "once PlanMode exit has ended the plan"
    )
    text = server.text("Bash", {"command": "echo one; sleep 60", "timeout": 60_000})
    assert re.fullmatch(
        r"one\nstill running after [\d.]+ s; goes on, with its timeout of 60000 ms, as background task (\d+): "
        "ReadBgOutput reads on; it stays read-only",
        text,
    )


def test_a_command_that_became_a_background_task_keeps_its_timeout(tmp_path: Path) -> None:
    async def body(me: Caller) -> None:
        me.settings = Settings(hold=0.1)
        task = (await me.bash("sleep 600", timeout=400)).structured["task_id"]
        assert await me.workspace.wait(task, BOUND)
        (notice,) = me.notices.take().values()
        assert "was killed" in notice.text and "timed out after 400 ms" in notice.text
        assert (await me.call("ReadBgOutput", task_id=task)).structured["status"] == "killed"

    on_caller(body, tmp_path)


def test_processes_left_running_become_a_background_task_at_once(tmp_path: Path) -> None:
    async def body(me: Caller) -> None:
        output = await me.bash("cd /; echo begun; sleep 600 & exit 3", timeout=2000)
        task = output.structured["task_id"]
        assert output.structured["duration_ms"] < 1500
        assert output.structured["exit_code"] == 3 and output.structured["cwd"] == "/"
        assert text_of(output) == (
            "begun\nexit code: 3\nleft running: 1 process, now "
            f"background task {task}: ReadBgOutput reads on, KillBgTask ends it"
        )
        (listed,) = (await me.call("ListBgTasks")).structured["tasks"]
        assert listed.pop("runtime_ms") >= 0
        command = "cd /; echo begun; sleep 600 & exit 3"
        assert listed == {"task_id": task, "command": command, "status": "running", "exit_code": None}
        assert (await me.call("KillBgTask", task_id=task)).structured == {
            "task_id": task,
            "status": "killed",
            "exit_code": 3,
        }
        assert me.notices.take() == {}

    on_caller(body, tmp_path)


def test_a_background_task_lives_and_is_read_and_is_killed(tmp_path: Path) -> None:
    async def body(me: Caller) -> None:
        started = await me.call("BackgroundBash", command="echo one; read -r line < fifo; echo $line; sleep 600")
        task = started.structured["task_id"]
        assert started.structured == {"task_id": task, "sandbox": me.workspace.sandbox}
        os.mkfifo(me.workspace.root / "fifo")
        await me.workspace.wait_output(task, 0, BOUND)
        first = await me.call("ReadBgOutput", task_id=task)
        assert first.structured["status"] == "running"
        killed = await me.call("KillBgTask", task_id=task)
        assert killed.structured == {"task_id": task, "status": "killed", "exit_code": 143}
        assert re.fullmatch(rf"background task {task} was killed after [\d.]+ s \(exit code 143\)", text_of(killed))
        again = await me.call("KillBgTask", task_id=task)
        assert again.structured == {**killed.structured, "note": "it had ended before"}
        assert "it had ended before" in text_of(again)
        assert me.notices.take() == {}

    on_caller(body, tmp_path)


def test_a_killed_task_whose_command_had_succeeded_is_not_said_to_end_with_0(tmp_path: Path) -> None:
    async def body(me: Caller) -> None:
        task = (await me.call("BackgroundBash", command="sleep 600 & touch begun")).structured["task_id"]
        await until(lambda: (me.workspace.root / "begun").exists())
        await me.workspace.wait_shell(task, BOUND)
        killed = await me.call("KillBgTask", task_id=task)
        assert re.fullmatch(rf"background task {task} was killed after [\d.]+ s", text_of(killed))
        assert killed.structured == {"task_id": task, "status": "killed", "exit_code": 0}
        read = await me.call("ReadBgOutput", task_id=task)
        assert re.fullmatch(rf"\[task {task} was killed after [\d.]+ s\]", text_of(read))

    on_caller(body, tmp_path)


def test_a_task_that_ended_by_itself_is_announced_once_and_stays_as_it_was(tmp_path: Path) -> None:
    async def body(me: Caller) -> None:
        task = (await me.call("BackgroundBash", command="printf out; exit 5")).structured["task_id"]
        assert await me.workspace.wait(task, BOUND)
        (listed,) = (await me.call("ListBgTasks")).structured["tasks"]
        assert (listed["status"], listed["exit_code"]) == ("exited", 5)
        assert me.notices.take() == {}
        killed = await me.call("KillBgTask", task_id=task)
        assert killed.structured == {"task_id": task, "status": "exited", "exit_code": 5, "note": "it had ended before"}
        outputs = [(await me.call("ReadBgOutput", task_id=task)).structured["output"] for _ in range(3)]
        assert outputs == ["out", "", ""]

    on_caller(body, tmp_path)


def test_reads_never_split_a_character_and_hand_long_output_out_in_pieces(tmp_path: Path) -> None:
    async def body(me: Caller) -> None:
        command = "printf 'a\\xc3'; read -r _ < go; printf '\\xbc'; printf '€%.0s' {1..30000}; printf '\\xe2\\x82'"
        os.mkfifo(me.workspace.root / "go")
        task = (await me.call("BackgroundBash", command=command)).structured["task_id"]
        await me.workspace.wait_output(task, 1, BOUND)
        assert (await me.call("ReadBgOutput", task_id=task)).structured["output"] == "a"
        (me.workspace.root / "go").write_text("\n")
        assert await me.workspace.wait(task, BOUND)
        pieces: list[str] = []
        while True:
            read = (await me.call("ReadBgOutput", task_id=task)).structured
            pieces.append(read["output"])
            assert len(read["output"].encode()) <= 30_000 + 2
            if not read["truncated"]:
                break
        assert "".join(pieces) == "ü" + "€" * 30_000 + "\ufffd"
        assert len(pieces) == 4

    on_caller(body, tmp_path)


@pytest.mark.parametrize("name", ["ReadBgOutput", "KillBgTask"])
def test_an_unknown_task_is_an_error_that_says_so(tmp_path: Path, name: str) -> None:
    async def body(me: Caller) -> None:
        await me.bash("seq 100000")  # a run that is kept, but no background task
        for task in (1, 99):
            output = await me.call(name, task_id=task)
            assert output.is_error
            assert text_of(output) == f"there is no background task {task}: call ListBgTasks for the ids"

    on_caller(body, tmp_path)


def test_more_commands_than_allowed_are_refused_until_one_ends(tmp_path: Path) -> None:
    async def body(me: Caller) -> None:
        tasks = [(await me.call("BackgroundBash", command="exec sleep 600")).structured["task_id"] for _ in range(64)]
        assert tasks == sorted(set(tasks))
        output = await me.bash("true")
        assert output.is_error and "64 commands are running" in text_of(output)
        await me.call("KillBgTask", task_id=tasks[0])
        assert not (await me.bash("true")).is_error

    on_caller(body, tmp_path)

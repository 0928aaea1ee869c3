"""Process trees: how they start, and that no process outlives its tree's end."""

import asyncio
import os
import resource
import signal
import socket
import subprocess
import time
from itertools import chain
from pathlib import Path
from typing import Any

import pytest

from tests.clients.raw_client import processes_with
from tests.tools.shell_commands import (
    BOUND,
    ENVIRONMENT,
    Caller,
    alive,
    children_of,
    descriptors,
    hosted,
    living,
    on_caller,
    on_workspace,
    processes,
    ran,
    text_of,
    told,
    until,
    wait_for,
    workspace,
)
from toolgate.tools.workspace.commands.environment import UnsandboxedEnvironment
from toolgate.tools.workspace.limits import UNLIMITED
from toolgate.tools.workspace.local_workspace import LocalWorkspace
from toolgate.tools.workspace.processes.process import Launch, Process
from toolgate.tools.workspace.processes.supervisor import GIVE_UP
from toolgate.tools.workspace.processes.zygote import CommandRunner

TREE = """
(setsid bash -c 'trap "" TERM; echo $BASHPID > daemon; while :; do sleep 1; done' >/dev/null 2>&1 &)
python3 -c '
import os, signal, time
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        open("forked", "w").write(f"{os.getpid()}\\n")
        time.sleep(600)
    os._exit(0)
os.wait()'
sleep 600 &
echo $! > child
echo $$ > shell
touch ready
wait
"""


async def grown_tree(root: Path) -> list[int]:
    """Return the processes of TREE, once all of them run."""
    names = ["daemon", "forked", "child", "shell"]
    await until(lambda: (root / "ready").exists() and all((root / name).exists() for name in names))
    await until(lambda: all((root / name).read_text().endswith("\n") for name in names))
    pids = [int((root / name).read_text()) for name in names]
    assert all(alive(pid) for pid in pids)
    return pids


def test_a_timeout_ends_the_whole_tree_daemons_included(tmp_path: Path) -> None:
    async def body(me: Caller) -> None:
        call = asyncio.ensure_future(me.bash(f"echo begun; {TREE}", timeout=5000))
        pids = await grown_tree(me.workspace.root)
        output = await call
        assert not any(alive(pid) for pid in pids)
        assert output.is_error
        assert text_of(output).startswith("begun\ntimed out after 5000 ms; for what takes longer use a larger timeout")
        assert output.structured["timed_out"] and output.structured["exit_code"] is None
        assert output.structured["task_id"] is None
        assert (await me.call("ListBgTasks")).structured == {"tasks": []}

    on_caller(body, tmp_path)


def test_a_cancelled_command_is_gone_with_its_tree_before_the_call_ends(tmp_path: Path) -> None:
    async def body(me: Caller) -> None:
        call = asyncio.ensure_future(me.bash(TREE))
        pids = await grown_tree(me.workspace.root)
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        assert not any(alive(pid) for pid in pids)
        assert (await me.call("ListBgTasks")).structured == {"tasks": []}

    on_caller(body, tmp_path)


def test_a_command_cancelled_as_it_starts_does_not_run_on(tmp_path: Path) -> None:
    async def body(me: Caller) -> None:
        mark = f"600.{os.getpid()}"
        for turns in range(12):
            call = asyncio.ensure_future(me.bash(f"exec sleep {mark}"))
            for _ in range(turns):
                await asyncio.sleep(0)
            call.cancel()
            with pytest.raises(asyncio.CancelledError):
                await call
        await until(lambda: not living(mark))

    on_caller(body, tmp_path)


def test_a_command_may_kill_its_supervisor_and_does_not_outlive_it(tmp_path: Path) -> None:
    async def body(me: Caller) -> None:
        mark = f"601.{os.getpid()}"
        output = await me.bash(f"echo hi; setsid sleep {mark} & kill -9 $PPID; sleep {mark}")
        assert output.is_error
        assert text_of(output).startswith("hi\nthe command is lost")
        await until(lambda: not living(mark))
        assert told(await me.bash("echo well")) == "well\n"

    on_caller(body, tmp_path)


def test_a_command_that_kills_its_supervisor_at_once_is_lost_and_runs_once(tmp_path: Path) -> None:
    """Its start is reported with its end, if that comes soon."""

    async def body(me: Caller) -> None:
        await me.bash("true")
        for number in range(20):
            output = await me.bash("echo run >>runs; kill -9 $PPID")
            assert output.is_error and text_of(output).startswith("the command is lost"), number
        assert (me.workspace.root / "runs").read_text() == "run\n" * 20

    on_caller(body, tmp_path)


def test_a_command_that_stops_its_supervisors_at_once_has_started(tmp_path: Path) -> None:
    """Its start waits for its end, if that comes soon."""

    async def body(me: Caller) -> None:
        up = "up=$(cut -d' ' -f4 /proc/$PPID/stat)"  # the zygote
        output = await me.bash(f"{up}; kill -STOP $up $PPID; echo end", timeout=3_000)
        assert text_of(output).startswith("end\n")  # and perhaps that it timed out, if it was slow

    on_caller(body, tmp_path)


def test_a_call_in_flight_is_told_that_the_server_stopped(tmp_path: Path) -> None:
    async def body(me: Caller) -> None:
        call = asyncio.ensure_future(me.bash("touch up; sleep 600"))
        await until((me.workspace.root / "up").exists)
        await me.workspace.close(0.2)
        output = await call
        assert output.is_error and "the server stopped" in text_of(output)

    on_caller(body, tmp_path)


def test_killing_the_server_kills_its_commands_and_their_daemons(tmp_path: Path) -> None:
    mark = f"602.{os.getpid()}"
    command = f"trap '' TERM; (setsid setsid sleep {mark} &) ; sleep {mark} & echo up; sleep {mark}"
    script = f"""
import asyncio, pathlib
from tests.tools.shell_commands import workspace
async def main():
    async with workspace(pathlib.Path({str(tmp_path)!r})) as mine:
        for _ in range(3):
            await mine.start({command!r})
        print("up", flush=True)
        await asyncio.sleep(60)
asyncio.run(main())
"""
    host = hosted(script)
    try:
        assert host.stdout is not None and host.stdout.readline() == "up\n"
        wait_for(lambda: len(living(mark)) == 9)
        below = children_of(host.pid)
        assert len(below) >= 9 + 3 + 1  # sleeps, supervisors, the zygote
    finally:
        host.send_signal(signal.SIGKILL)
        host.communicate()
    wait_for(lambda: not living(mark))
    wait_for(lambda: not below & {pid for pid, *_ in processes()})


def test_closing_leaves_no_process_and_no_descriptor_in_time(tmp_path: Path) -> None:
    async def run() -> float:
        async with workspace(tmp_path) as mine:
            await asyncio.gather(*(ran(mine, "true") for _ in range(50)))
            for command in ("trap '' TERM; sleep 600; sleep 600", "(setsid sleep 600 &)", "exec sleep 600"):
                await mine.start(command, background=True)
            await mine.start("trap '' TERM; touch deaf; while :; do sleep 600; done")
            await until((mine.root / "deaf").exists)
            assert len(children_of(os.getpid())) > 5
            began = time.monotonic()
        return time.monotonic() - began

    asyncio.run(run())
    before = descriptors()
    took = asyncio.run(run())
    assert took < GIVE_UP / 2
    assert descriptors() == before
    assert children_of(os.getpid()) == set()


def test_fifty_commands_cost_no_descriptor(tmp_path: Path) -> None:
    async def body(mine: LocalWorkspace) -> None:
        await ran(mine, "true")
        before = descriptors()
        for _ in range(50):
            task = await mine.start("echo hi")
            await mine.wait(task, BOUND)
            await mine.forget(task)
        assert descriptors() == before
        assert len(children_of(os.getpid())) <= 3  # the zygote, the waiting supervisor, one that is just ending

    on_workspace(body, tmp_path)


def test_a_zygote_that_died_is_replaced(tmp_path: Path) -> None:
    async def body(mine: LocalWorkspace) -> None:
        await ran(mine, "true")
        task = await mine.start("sleep 600", background=True)
        (zygote,) = (pid for pid, up, _, _ in processes() if up == os.getpid())
        os.kill(zygote, signal.SIGKILL)
        assert await ran(mine, "echo well") == b"well\n"
        assert (await mine.run(task)).status == "running"
        assert (await mine.kill(task)).status == "killed"

    on_workspace(body, tmp_path)


def test_a_zygote_that_does_not_answer_is_replaced_and_its_command_runs_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("toolgate.tools.workspace.processes.process.START_WITHIN", 0.3)
    monkeypatch.setattr("toolgate.tools.workspace.processes.zygote.END_WITHIN", 0.1)
    monkeypatch.setattr(
        "toolgate.tools.workspace.processes.zygote.Zygote.wake", lambda *_: None
    )  # as if it were stopped again

    async def body(mine: LocalWorkspace) -> None:
        await ran(mine, "true")
        (zygote,) = (pid for pid, up, _, _ in processes() if up == os.getpid())
        await until(lambda: len(children_of(zygote)) == 1)
        (waiting,) = children_of(zygote)
        for pid in (zygote, waiting):
            os.kill(pid, signal.SIGSTOP)
        await ran(mine, "echo x >> log")
        await until(lambda: not {zygote, waiting} & {pid for pid, *_ in processes()})
        assert (mine.root / "log").read_text() == "x\n"

    on_workspace(body, tmp_path)


def test_quick_commands_share_a_supervisor(tmp_path: Path) -> None:
    async def body(mine: LocalWorkspace) -> None:
        supervisors = [int(await ran(mine, "echo $PPID")) for _ in range(30)]  # on a busy machine some are not quick
        assert len(set(supervisors)) < len(supervisors)
        slow = int(await ran(mine, "echo $PPID; sleep 0.2"))
        assert int(await ran(mine, "echo $PPID")) != slow
        await until(lambda: not any(map(alive, {slow, *supervisors})))

    on_workspace(body, tmp_path)


def test_a_command_does_not_wait_for_one_that_has_just_started(tmp_path: Path) -> None:
    async def body(mine: LocalWorkspace) -> None:
        await ran(mine, "true")
        slow = await mine.start("sleep 600", background=True)
        assert await ran(mine, "echo well") == b"well\n"
        assert (await mine.run(slow)).status == "running"

    on_workspace(body, tmp_path)


def test_a_waiting_supervisor_that_dies_is_replaced(tmp_path: Path) -> None:
    async def body(mine: LocalWorkspace) -> None:
        for _ in range(3):
            os.kill(int(await ran(mine, "echo $PPID")), signal.SIGKILL)

    on_workspace(body, tmp_path)


def test_limits_of_one_command_are_not_those_of_the_next(tmp_path: Path) -> None:
    async def body(mine: LocalWorkspace) -> None:
        processes, folder = CommandRunner(), Path("/")
        for limits in ({}, {resource.RLIMIT_NOFILE: 40}, {resource.RLIMIT_NOFILE: 60}, {}):
            output = bytearray()
            launch = Launch(["bash", "-c", "ulimit -n"], folder, folder, {"PATH": os.defpath}, limits)
            started = await processes.start(launch, lambda data, output=output: not output.extend(data))
            await started.gone
            most = limits.get(resource.RLIMIT_NOFILE, resource.getrlimit(resource.RLIMIT_NOFILE)[0])
            assert bytes(output) == f"{most}\n".encode()
        await processes.close()

    on_workspace(body, tmp_path)


def test_a_supervisor_is_shared_only_by_commands_of_one_owner_with_the_same_limits(tmp_path: Path) -> None:
    async def body(mine: LocalWorkspace) -> None:
        runner = CommandRunner()
        used: dict[tuple[str, int, bool], list[bytes]] = {}

        async def run(owner: str, files: int, *, remove_only: bool = False) -> None:
            output = bytearray()
            limits = {resource.RLIMIT_NOFILE: files}
            command, variables = ["bash", "-c", "echo $PPID $(ulimit -n)"], {"PATH": os.defpath}
            launch = Launch(command, Path("/"), Path("/"), variables, limits, remove_only, owner=owner)
            await (await runner.start(launch, lambda data: not output.extend(data))).gone
            supervisor, most = output.split()
            assert int(most) == files
            used.setdefault((owner, files, remove_only), []).append(bytes(supervisor))

        for _ in range(4):  # on a busy machine some are not quick
            for owner, files in (("ada", 40), ("eve", 40), ("eve", 60), ("ada", 60)):
                for _ in range(4):
                    await run(owner, files)
            await run("ada", 60, remove_only=True)
            await asyncio.gather(*(run(owner, 40) for owner in ("ada", "eve") * 8))
        await runner.close()
        assert any(len(set(supervisors)) < len(supervisors) for supervisors in used.values())
        assert sum(len(set(supervisors)) for supervisors in used.values()) == len(set(chain(*used.values())))

    on_workspace(body, tmp_path)


def test_two_people_of_one_folder_have_no_supervisor_in_common(tmp_path: Path) -> None:
    async def main() -> None:
        runner = CommandRunner()
        environment = UnsandboxedEnvironment(runner, UNLIMITED)
        ada, eve = (
            LocalWorkspace(tmp_path, tmp_path / name, ENVIRONMENT, lambda _: None, command_environment=environment)
            for name in ("ada", "eve")
        )
        used = {name: [await ran(whose, "echo $PPID") for _ in range(6)] for name, whose in (("a", ada), ("e", eve))}
        assert not set(used["a"]) & set(used["e"])
        await asyncio.gather(ada.close(0.2), eve.close(0.2))
        await runner.close()

    asyncio.run(main())


def test_many_commands_start_at_once(tmp_path: Path) -> None:
    async def body(mine: LocalWorkspace) -> None:
        outputs = await asyncio.gather(*(ran(mine, f"echo {number}") for number in range(60)))
        assert outputs == [f"{number}\n".encode() for number in range(60)]

    on_workspace(body, tmp_path)


def test_processes_that_never_stop_forking_are_killed(tmp_path: Path) -> None:
    async def body(mine: LocalWorkspace) -> None:
        mark = f"603.{os.getpid()}"
        chase = 'import os\nfor _ in range(2): os.fork()\nos.write(1, b"x")\n'
        chase += "while True:\n if os.fork(): os._exit(0)\n os.setsid()"
        task = await mine.start(f"python3 -c '{chase}' {mark} & python3 -c '{chase}' {mark}", background=True)
        async with asyncio.timeout(BOUND):
            while await mine.size(task) < 8:
                await asyncio.sleep(0.01)
        assert (await mine.kill(task, 0.0)).status == "killed"
        assert living(mark) == set()

    on_workspace(body, tmp_path)


def test_stopped_processes_are_killed_too(tmp_path: Path) -> None:
    async def body(mine: LocalWorkspace) -> None:
        task = await mine.start("touch up; kill -STOP $$", background=True)
        await until((mine.root / "up").exists)
        run = await mine.kill(task)
        assert (run.status, run.exit_code) == ("killed", 143)

    on_workspace(body, tmp_path)


def test_how_a_command_ended_is_known_as_soon_as_it_is_waited_for(tmp_path: Path) -> None:
    async def body(mine: LocalWorkspace) -> None:
        for _ in range(20):
            starting = asyncio.ensure_future(mine.start("exit 3"))
            while not starting.done():
                await asyncio.sleep(0)
                time.sleep(0.01)  # blocks the loop: all messages of the supervisor arrive at once
            task = await starting
            assert await mine.wait_shell(task, BOUND)
            assert (await mine.run(task)).exit_code == 3
            assert await mine.wait(task, BOUND)
            assert (await mine.run(task)).status == "exited"

    on_workspace(body, tmp_path)


def test_a_supervisor_that_dies_as_it_is_woken_leaves_no_timer(tmp_path: Path) -> None:
    async def body() -> None:
        faults: list[dict[str, Any]] = []
        asyncio.get_running_loop().set_exception_handler(lambda _, context: faults.append(context))
        control, supervisor = socket.socketpair()
        control.setblocking(False)
        output, end = os.pipe()
        os.close(end)
        process = Process(control, output, lambda _: True, stopped_after=0.0)
        with subprocess.Popen(["sleep", "60"]) as sleeper, supervisor:
            supervisor.send(f"here {sleeper.pid}\n".encode())
            await until(lambda: process.has_supervisor)
            supervisor.close()
            await process.begin(b"request")
            assert await process.gone is False
            sleeper.kill()
        await asyncio.sleep(0)  # the timer's turn
        assert not faults

    asyncio.run(body())


def test_a_closed_runner_follows_no_command_any_more() -> None:
    async def body() -> None:
        before, runner = descriptors(), CommandRunner()
        mark = f"60.{os.getpid()}"
        launch = Launch(["sleep", mark], Path("/"), Path("/"), {"PATH": os.environ["PATH"]})
        process = await runner.start(launch, lambda _: True)
        await runner.close()
        assert process.gone.done() and not process.gone.result()
        assert descriptors() <= before
        await until(lambda: not processes_with(mark))

    asyncio.run(body())


def test_commands_run_where_a_server_holds_over_a_thousand_descriptors(tmp_path: Path) -> None:
    """select(2) takes none above 1023, and a zygote's channel has the number that it has in the server."""

    async def body(me: Caller) -> None:
        for _ in range(3):
            assert text_of(await me.call("Bash", command="echo hi")) == "hi\n"

    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(before[1], 4096), before[1]))
    held = [os.open(os.devnull, os.O_RDONLY) for _ in range(1_100)]
    try:
        on_caller(body, tmp_path)
    finally:
        for descriptor in held:
            os.close(descriptor)
        resource.setrlimit(resource.RLIMIT_NOFILE, before)

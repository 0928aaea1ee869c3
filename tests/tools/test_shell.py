"""The five shell tools, through Tool.run, on real processes."""

import asyncio
import contextlib
import itertools
import os
import re
import shlex
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping
from pathlib import Path
from typing import Any

import msgspec
import pytest

from toolgate.tools.content import Output, Text
from toolgate.tools.context import Belongings, Context, Place, Settings
from toolgate.tools.notices import Notices
from toolgate.tools.processes import Processes
from toolgate.tools.schema import check
from toolgate.tools.shell import TOOLS
from toolgate.tools.workspace import Workspace

ENVIRONMENT = {"PATH": os.environ["PATH"], "HOME": "/", "LANG": "C.UTF-8"}
BOUND = 10.0  # seconds for anything here that must come


class Caller:
    """A client's end of a call that notes its progress messages, and a session's belongings."""

    def __init__(self, workspace: Workspace, notices: Notices) -> None:
        self.workspace = workspace
        self.notices = notices
        self.place = Place("session")
        self.settings = Settings()
        self.wants_progress = False
        self.heard: list[tuple[float, str | None, float]] = []
        self.on_progress: Callable[[], None] = lambda: None

    def progress(self, progress: float, total: float | None, message: str | None) -> None:
        self.heard.append((progress, message, time.monotonic()))
        self.on_progress()

    async def call(self, name: str, **arguments: Any) -> Output:
        """Call a tool; its structured content, which must fit its schema, comes back as plain data."""
        nothing: Any = None
        lent = Belongings("me", self.place, self.workspace, nothing, nothing, nothing, nothing, nothing, self.settings)
        peer: Any = self
        tool = next(tool for tool in TOOLS if tool.name == name)
        output = await asyncio.wait_for(tool.run(arguments, Context(lent, peer)), 30)
        structured = msgspec.to_builtins(output.structured)
        if structured is not None:
            assert tool.output is not None
            assert check(tool.output)(structured) is None
        return Output(output.content, structured, output.is_error)

    async def bash(self, command: str, **arguments: Any) -> Output:
        return await self.call("Bash", command=command, **arguments)


def text_of(output: Output) -> str:
    (block,) = output.content
    assert isinstance(block, Text)
    return block.text


def told(output: Output) -> str:
    return str(output.structured["stdout_and_stderr"])


@contextlib.asynccontextmanager
async def caller(folder: Path, environment: Mapping[str, str]) -> AsyncIterator[Caller]:
    root = folder / "root"
    root.mkdir(exist_ok=True)
    processes, notices = Processes(), Notices()
    workspace = Workspace(root, folder / "spool", environment, notices, processes=processes)
    try:
        yield Caller(workspace, notices)
    finally:
        await workspace.close(0.2)
        await processes.close()


def on_caller(
    body: Callable[[Caller], Coroutine[Any, Any, None]],
    folder: Path,
    environment: Mapping[str, str] = ENVIRONMENT,
) -> None:
    async def run() -> None:
        async with caller(folder, environment) as me:
            await body(me)

    asyncio.run(run())


def alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state not in "ZX"


async def until(condition: Callable[[], bool]) -> None:
    """Look again and again, for what nothing announces: another process's doing."""
    async with asyncio.timeout(BOUND):
        while not condition():
            await asyncio.sleep(0.01)


def test_output_comes_in_order_with_the_exit_code(tmp_path: Path) -> None:
    async def body(me: Caller) -> None:
        output = await me.bash("echo one; echo two >&2; echo three; exit 3")
        assert text_of(output) == "one\ntwo\nthree\nexit code: 3"
        assert not output.is_error
        duration = output.structured.pop("duration_ms")
        assert 0 <= duration < 5000
        assert output.structured == {
            "stdout_and_stderr": "one\ntwo\nthree\n",
            "exit_code": 3,
            "timed_out": False,
            "truncated": False,
            "output_file": None,
            "cwd": str(me.workspace.root),
            "sandbox": "none",
            "task_id": None,
        }

    on_caller(body, tmp_path)


@pytest.mark.parametrize(
    ("command", "text", "code"),
    [
        ("true", "", 0),
        ("printf hi", "hi", 0),
        ("printf hi; false", "hi\nexit code: 1", 1),
        ("cat", "", 0),  # stdin is empty
        ("kill -9 $$", "exit code: 137", 137),
        ("trap 'echo bye' EXIT; echo hi", "hi\nbye\n", 0),
        ("set -eC; cd /; echo hi", "hi\n", 0),
        (r"printf '\xff\xfe caf\xc3\xa9 \xe2\x82'", "\ufffd\ufffd café \ufffd", 0),
        ("echo $0 $# $BASH_ENV", "bash 0\n", 0),
        ("grep SigIgn /proc/self/status | cut -c 18-", "0000000\n", 0),
        ("ls /proc/self/fd | wc -l", "4\n", 0),  # 0, 1, 2 and the listing itself
        ("echo later > >(sleep 0.02; cat)", "later\n", 0),
    ],
)
def test_a_command_says_what_bash_says(tmp_path: Path, command: str, text: str, code: int) -> None:
    async def body(me: Caller) -> None:
        output = await me.bash(command)
        assert (text_of(output), output.structured["exit_code"], output.is_error) == (text, code, False)

    on_caller(body, tmp_path)


def test_the_working_directory_persists_and_nothing_else_does(tmp_path: Path) -> None:
    async def body(me: Caller) -> None:
        odd = me.workspace.root / 'it\'s a "$HOME" \\ ü'
        odd.mkdir()
        output = await me.bash(f"X=1; cd {shlex.quote(str(odd))}")
        assert output.structured["cwd"] == str(odd) == str(me.place.cwd)
        assert told(await me.bash("pwd; echo $X")) == f"{odd}\n\n"
        assert told(await me.bash("(cd /); bash -c 'cd /'; false; exit 0")) == ""
        assert me.place.cwd == odd
        await me.call("BackgroundBash", command="cd /")
        await me.bash("cd ..; exit 7")
        assert told(await me.bash("pwd")) == f"{me.workspace.root}\n"

    on_caller(body, tmp_path)


def test_a_working_directory_that_is_gone_gives_way_to_the_root(tmp_path: Path) -> None:
    async def body(me: Caller) -> None:
        root = me.workspace.root
        await me.bash("mkdir away; cd away")
        await me.bash("rmdir ../away")
        output = await me.bash("pwd")
        assert text_of(output) == f"{root}\nthe working directory {root}/away is gone: ran in {root}"
        assert output.structured["cwd"] == str(root)
        assert text_of(await me.bash("pwd")) == f"{root}\n"

    on_caller(body, tmp_path)


def test_of_two_commands_at_once_the_one_that_stayed_does_not_undo_the_others_cd(tmp_path: Path) -> None:
    async def body(me: Caller) -> None:
        stays = asyncio.ensure_future(me.bash("until [ -e go ]; do sleep 0.01; done"))
        await me.bash("cd /; touch $OLDPWD/go")
        await stays
        assert me.place.cwd == Path("/")

    on_caller(body, tmp_path)


def test_a_users_own_bash_env_still_works(tmp_path: Path) -> None:
    async def body(me: Caller) -> None:
        (me.workspace.root / "rc").write_text("hello() { echo hello $BASH_ENV; }")
        assert told(await me.bash("hello; cd /; bash -c hello")) == "hello $HERE/rc\n" * 2
        assert me.place.cwd == Path("/")

    on_caller(body, tmp_path, {**ENVIRONMENT, "BASH_ENV": "$HERE/rc", "HERE": str(tmp_path / "root")})


def test_long_output_loses_its_middle_and_says_where_all_of_it_is(tmp_path: Path) -> None:
    async def body(me: Caller) -> None:
        output = await me.bash("seq 100000; exit 2")
        whole = "".join(f"{number}\n" for number in range(1, 100_001))
        text, file = told(output), output.structured["output_file"]
        assert output.structured["truncated"] and output.structured["exit_code"] == 2
        assert len(text) <= 30_000
        head, count, tail = re.split(r"\n\[… ([\d,]+) characters dropped; all of it is in .*? …\]\n", text)
        assert whole.startswith(head) and whole.endswith(tail)
        assert len(head) + int(count.replace(",", "")) + len(tail) == len(whole)
        assert file in text
        assert text_of(output) == f"{text}exit code: 2"
        assert told(await me.bash(f"wc -c < {shlex.quote(file)}")).strip() == str(len(whole))

    on_caller(body, tmp_path)


def test_output_up_to_the_limit_is_whole_in_characters_not_bytes(tmp_path: Path) -> None:
    async def body(me: Caller) -> None:
        output = await me.bash("printf 'ü%.0s' $(seq 30000)")
        assert told(output) == "ü" * 30_000
        assert output.structured["output_file"] is None
        assert [path.name for path in (tmp_path / "spool").iterdir() if path.name.isdecimal()] == []
        output = await me.bash("printf 'ü%.0s' $(seq 30001)")
        assert output.structured["truncated"]

    on_caller(body, tmp_path)


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
    """The processes of TREE, once they are all there."""
    names = ["daemon", "forked", "child", "shell"]
    await until(lambda: (root / "ready").exists() and all((root / name).exists() for name in names))
    await until(lambda: all((root / name).read_text().endswith("\n") for name in names))
    pids = [int((root / name).read_text()) for name in names]
    assert all(alive(pid) for pid in pids)
    return pids


def test_a_timeout_ends_the_whole_tree_daemons_included(tmp_path: Path) -> None:
    async def body(me: Caller) -> None:
        call = asyncio.ensure_future(me.bash(f"echo begun; {TREE}", timeout=1000))
        pids = await grown_tree(me.workspace.root)
        output = await call
        assert not any(alive(pid) for pid in pids)
        assert output.is_error
        assert text_of(output) == "begun\ntimed out after 1000 ms"
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
        await until(lambda: not running(mark))

    on_caller(body, tmp_path)


def running(word: str) -> list[int]:
    """Processes that live with `word` among their arguments."""
    found: list[int] = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            if word.encode() in path.read_bytes().split(b"\0") and alive(int(path.parent.name)):
                found.append(int(path.parent.name))
    return found


def test_what_is_held_too_long_goes_on_as_a_background_task(tmp_path: Path) -> None:
    async def body(me: Caller) -> None:
        me.settings = Settings(hold=0.3)
        output = await me.bash("echo one; until [ -e go ]; do sleep 0.01; done; echo two; exit 4")
        task = output.structured["task_id"]
        assert not output.is_error
        assert output.structured["exit_code"] is None and not output.structured["timed_out"]
        assert text_of(output) == (
            "one\nstill running after 0.3 s; goes on, with its timeout of 30000 ms, as "
            f"background task {task}: ReadBgOutput reads on, KillBgTask ends it"
        )
        read = (await me.call("ReadBgOutput", task_id=task)).structured
        assert read == {"task_id": task, "output": "", "status": "running", "exit_code": None, "truncated": False}
        (me.workspace.root / "go").touch()
        assert await me.workspace.wait(task, BOUND)
        (notice,) = me.notices.take().values()
        assert re.fullmatch(
            rf"background task {task} \(echo one; until .*…\) exited with code 4 after [\d.]+ s; "
            "read it with ReadBgOutput",
            notice,
        )
        read = (await me.call("ReadBgOutput", task_id=task)).structured
        assert read == {"task_id": task, "output": "two\n", "status": "exited", "exit_code": 4, "truncated": False}

    on_caller(body, tmp_path)


def test_what_became_a_background_task_keeps_its_timeout(tmp_path: Path) -> None:
    async def body(me: Caller) -> None:
        me.settings = Settings(hold=0.1)
        task = (await me.bash("sleep 600", timeout=400)).structured["task_id"]
        assert await me.workspace.wait(task, BOUND)
        (notice,) = me.notices.take().values()
        assert "was killed" in notice and "timed out after 400 ms" in notice
        assert (await me.call("ReadBgOutput", task_id=task)).structured["status"] == "killed"

    on_caller(body, tmp_path)


def test_what_a_command_leaves_running_becomes_a_background_task_at_once(tmp_path: Path) -> None:
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
        assert started.structured == {"task_id": task, "sandbox": "none"}
        os.mkfifo(me.workspace.root / "fifo")
        await me.workspace.grown(task, 0, BOUND)
        first = await me.call("ReadBgOutput", task_id=task)
        assert first.structured["status"] == "running"
        killed = await me.call("KillBgTask", task_id=task)
        assert killed.structured == {"task_id": task, "status": "killed", "exit_code": 143}
        assert re.fullmatch(rf"background task {task} was killed after [\d.]+ s \(exit code 143\)", text_of(killed))
        again = await me.call("KillBgTask", task_id=task)
        assert again.structured == killed.structured and "it had ended before" in text_of(again)
        assert me.notices.take() == {}

    on_caller(body, tmp_path)


def test_a_task_that_ended_by_itself_is_told_once_and_stays_as_it_was(tmp_path: Path) -> None:
    async def body(me: Caller) -> None:
        task = (await me.call("BackgroundBash", command="printf out; exit 5")).structured["task_id"]
        assert await me.workspace.wait(task, BOUND)
        (listed,) = (await me.call("ListBgTasks")).structured["tasks"]
        assert (listed["status"], listed["exit_code"]) == ("exited", 5)
        assert me.notices.take() == {}
        killed = await me.call("KillBgTask", task_id=task)
        assert killed.structured == {"task_id": task, "status": "exited", "exit_code": 5}
        outputs = [(await me.call("ReadBgOutput", task_id=task)).structured["output"] for _ in range(3)]
        assert outputs == ["out", "", ""]

    on_caller(body, tmp_path)


def test_reads_never_split_a_character_and_hand_long_output_out_in_pieces(tmp_path: Path) -> None:
    async def body(me: Caller) -> None:
        command = "printf 'a\\xc3'; read -r _ < go; printf '\\xbc'; printf '€%.0s' {1..30000}; printf '\\xe2\\x82'"
        os.mkfifo(me.workspace.root / "go")
        task = (await me.call("BackgroundBash", command=command)).structured["task_id"]
        await me.workspace.grown(task, 1, BOUND)
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
            assert text_of(output) == f"there is no background task {task}: ListBgTasks lists those there are"

    on_caller(body, tmp_path)


def test_output_streams_as_progress_that_grows_and_is_not_too_much(tmp_path: Path) -> None:
    async def body(me: Caller) -> None:
        me.wants_progress = True
        me.on_progress = (me.workspace.root / "heard").touch
        command = "printf 'caf\\xc3'; until [ -e heard ]; do sleep 0.01; done; printf '\\xa9\\n'; sleep 0.6; seq 3"
        output = await me.bash(command)
        assert told(output) == "café\n1\n2\n3\n"
        assert [message for _, message, _ in me.heard][:2] == ["caf", "é\n"]
        amounts = [amount for amount, _, _ in me.heard]
        times = [when for _, _, when in me.heard]
        assert amounts == sorted(set(amounts))
        assert all(late - early >= 0.25 for early, late in itertools.pairwise(times))

    on_caller(body, tmp_path)


def test_a_flood_is_streamed_by_its_newest_part(tmp_path: Path) -> None:
    async def body(me: Caller) -> None:
        me.wants_progress = True
        me.on_progress = (me.workspace.root / "heard").touch
        await me.bash("seq 100000; until [ -e heard ]; do sleep 0.01; done")
        (_, message, _), *_ = me.heard
        assert message is not None and message.startswith("…") and message.endswith("\n100000\n")
        assert len(message) <= 4001

    on_caller(body, tmp_path)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({"command": "true", "timeout": 0}, "timeout"),
        ({"command": "true", "timeout": 600_001}, "timeout"),
        ({"command": "a\0b"}, "NUL"),
        ({"command": "\ud800"}, "surrogate"),
        ({"command": ": " + "x" * 140_000}, "140,002 bytes"),
    ],
)
def test_what_can_not_be_run_is_refused_with_a_reason(tmp_path: Path, arguments: Any, says: str) -> None:
    async def body(me: Caller) -> None:
        output = await me.call("Bash", **arguments)
        assert output.is_error and output.structured is None
        assert says in text_of(output)
        assert told(await me.bash("echo well")) == "well\n"

    on_caller(body, tmp_path)


@pytest.mark.parametrize(
    ("environment", "says"),
    [
        ({f"V{n}": "x" * 100_000 for n in range(30)}, "the command was not started: Argument list too long"),
        ({f"V{n}": "x" * 100_000 for n in range(100)}, "over 8,388,608"),
        ({"PATH": "/nowhere"}, "bash is not on the PATH '/nowhere'"),
    ],
)
def test_an_environment_that_will_not_do_is_a_reason(tmp_path: Path, environment: dict[str, str], says: str) -> None:
    async def body(me: Caller) -> None:
        output = await me.bash("true")
        assert output.is_error and says in text_of(output)

    on_caller(body, tmp_path, {"PATH": ENVIRONMENT["PATH"], **environment})


def test_a_workspace_that_is_gone_is_a_reason(tmp_path: Path) -> None:
    async def body(me: Caller) -> None:
        me.workspace.root.rmdir()
        assert "can be entered: No such file or directory" in text_of(await me.bash("true"))

    on_caller(body, tmp_path)


def test_eight_commands_at_once_overlap(tmp_path: Path) -> None:
    async def body(me: Caller) -> None:
        await me.bash("true")
        began = time.monotonic()
        outputs = await asyncio.gather(*(me.bash(f"sleep 1; echo {number}") for number in range(8)))
        assert time.monotonic() - began < 2.5
        assert [told(output) for output in outputs] == [f"{number}\n" for number in range(8)]

    on_caller(body, tmp_path)


def test_a_command_may_kill_its_supervisor_and_does_not_outlive_it(tmp_path: Path) -> None:
    async def body(me: Caller) -> None:
        mark = f"601.{os.getpid()}"
        output = await me.bash(f"echo hi; setsid sleep {mark} & kill -9 $PPID; sleep {mark}")
        assert output.is_error and "is lost" in text_of(output)
        await until(lambda: not running(mark))
        assert told(await me.bash("echo well")) == "well\n"

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


def test_a_call_in_flight_is_told_that_the_server_stopped(tmp_path: Path) -> None:
    async def body(me: Caller) -> None:
        call = asyncio.ensure_future(me.bash("touch up; sleep 600"))
        await until((me.workspace.root / "up").exists)
        await me.workspace.close(0.2)
        output = await call
        assert output.is_error and "the server stopped" in text_of(output)

    on_caller(body, tmp_path)


def test_the_tools_are_declared_as_the_contract_has_them() -> None:
    shapes = {tool.name: (list(tool.input["properties"]), tool.input.get("required", [])) for tool in TOOLS}
    assert shapes == {
        "Bash": (["command", "timeout"], ["command"]),
        "BackgroundBash": (["command"], ["command"]),
        "ReadBgOutput": (["task_id"], ["task_id"]),
        "ListBgTasks": ([], []),
        "KillBgTask": (["task_id"], ["task_id"]),
    }
    assert TOOLS[0].input["properties"]["timeout"]["default"] == 30_000
    assert all(len(tool.description) < 470 for tool in TOOLS)
    hints = {tool.name: (vars(tool.annotations), tool.scope) for tool in TOOLS}

    def hint(read_only: bool, destructive: bool, idempotent: bool, open_world: bool) -> dict[str, bool]:
        return {
            "read_only": read_only,
            "destructive": destructive,
            "idempotent": idempotent,
            "open_world": open_world,
        }

    assert hints == {
        "Bash": (hint(False, True, False, True), "tools:shell"),
        "BackgroundBash": (hint(False, True, False, True), "tools:shell"),
        "ReadBgOutput": (hint(True, False, False, False), "tools:read"),
        "ListBgTasks": (hint(True, False, True, False), "tools:read"),
        "KillBgTask": (hint(False, True, True, False), "tools:shell"),
    }

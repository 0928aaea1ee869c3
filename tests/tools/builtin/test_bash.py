"""Bash, through Tool.run, on real processes."""

import asyncio
import itertools
import re
import resource
import shlex
import time
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.tools.shell_commands import (
    BOUND,
    ENVIRONMENT,
    TOOLS,
    Caller,
    on_caller,
    text_of,
    told,
    until,
)
from toolgate.tools.api.context.services import Settings


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
            "sandbox": me.workspace.sandbox,
            "task_id": None,
            "note": "exit code: 3",
        }

    on_caller(body, tmp_path)


def test_no_output_is_named_in_the_text_alone(tmp_path: Path) -> None:
    async def body(me: Caller) -> None:
        for command, written, text in (("true", "", "(no output)"), ("echo", "\n", "\n(only white space)")):
            output = await me.bash(command)
            assert (text_of(output), told(output), output.structured["note"]) == (text, written, None)

    on_caller(body, tmp_path)


def test_a_command_dumps_no_core_unless_it_asks_for_one(tmp_path: Path) -> None:
    async def body(me: Caller) -> None:
        soft, hard = resource.getrlimit(resource.RLIMIT_CORE)
        resource.setrlimit(resource.RLIMIT_CORE, (hard, hard))
        try:
            asked = "ulimit -c; ulimit -Hc; ulimit -c $(ulimit -Hc) && ulimit -c"
            none, most, own = told(await me.bash(asked)).split()
        finally:
            resource.setrlimit(resource.RLIMIT_CORE, (soft, hard))
        assert (none, own) == ("0", most)

    on_caller(body, tmp_path)


@pytest.mark.parametrize(
    ("command", "text", "code"),
    [
        ("true", "(no output)", 0),
        ("printf hi", "hi", 0),
        ("printf hi; false", "hi\nexit code: 1", 1),
        ("cat", "(no output)", 0),  # stdin is empty
        ("kill -9 $$", "exit code: 137", 137),
        ("trap 'echo bye' EXIT; echo hi", "hi\nbye\n", 0),
        ("set -eC; cd /; echo hi", "hi\n", 0),
        (r"printf '\xff\xfe caf\xc3\xa9 \xe2\x82'", "\ufffd\ufffd café \ufffd", 0),
        ("echo $0 $# $BASH_ENV", "bash 0\n", 0),
        ("compgen -v TOOLGATE; env | grep ^TOOLGATE; true", "(no output)", 0),
        ("grep SigIgn /proc/self/status | cut -c 18-", "0000000\n", 0),
        ("ls /proc/self/fd | wc -l", "4\n", 0),  # 0, 1, 2 and the listing itself
        ("set -x; echo hi", "+ echo hi\nhi\n", 0),
        ("trap 'echo seen' DEBUG; true", "seen\n", 0),
        ("ulimit -f 0; echo hi", "hi\n", 0),
    ],
)
def test_a_command_says_what_bash_says(tmp_path: Path, command: str, text: str, code: int) -> None:
    async def body(me: Caller) -> None:
        output = await me.bash(command)
        assert (text_of(output), output.structured["exit_code"], output.is_error) == (text, code, False)

    on_caller(body, tmp_path)


def test_a_result_waits_for_processes_that_end_soon_after_their_command(tmp_path: Path) -> None:
    async def body(me: Caller) -> None:
        assert told(await me.bash("echo later > >(sleep 0.2; cat)")) == "later\n"

    on_caller(body, tmp_path, linger=40)  # a busy machine takes longer than LINGER


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


def test_the_previous_directory_persists_and_is_the_sessions_own(tmp_path: Path) -> None:
    async def body(me: Caller) -> None:
        root, link = me.workspace.root, me.workspace.root / "link"
        link.symlink_to("/usr")
        assert "cd: OLDPWD not set" in told(await me.bash("cd -"))
        await me.bash("mkdir sub; cd sub")
        assert told(await me.bash("echo $OLDPWD ~-; cd -")) == f"{root} {root}\n{root}\n"
        assert told(await me.bash("cd -; pwd")) == f"{root}/sub\n" * 2
        assert told(await me.bash("pwd; cd /bin; cd /; cd - >/dev/null; echo $OLDPWD")) == f"{root}/sub\n/\n"
        await me.bash("cd /; cd $OLDPWD; false; (cd /bin); bash -c 'cd /etc'")
        assert told(await me.bash("set -eu; cd - | cat")) == "/\n"
        await me.bash(f"cd {link}; cd /")
        assert told(await me.bash("echo ~-; env | grep ^OLDPWD")) == f"{link}\nOLDPWD={link}\n"

    on_caller(body, tmp_path, {**ENVIRONMENT, "OLDPWD": "/etc"})


def test_a_background_task_has_the_previous_directory_and_changes_none(tmp_path: Path) -> None:
    async def body(me: Caller) -> None:
        root = me.workspace.root
        await me.bash("mkdir sub; cd sub")
        task = (await me.call("BackgroundBash", command="cd -; pwd; cd /; cd /bin")).structured["task_id"]
        assert await me.workspace.wait(task, BOUND)
        assert (await me.call("ReadBgOutput", task_id=task)).structured["output"] == f"{root}\n" * 2
        assert told(await me.bash("echo $OLDPWD; pwd")) == f"{root}\n{root}/sub\n"

    on_caller(body, tmp_path)


def test_a_previous_directory_that_is_gone_is_none(tmp_path: Path) -> None:
    async def body(me: Caller) -> None:
        await me.bash("mkdir away; cd away; cd ..; rmdir away")
        assert "cd: OLDPWD not set" in told(await me.bash("cd -"))
        await me.bash("cd /; OLDPWD=relative")
        assert told(await me.bash("echo ~-; pwd")) == "~-\n/\n"

    on_caller(body, tmp_path)


@pytest.mark.parametrize(
    ("command", "text"),
    [
        ("echo one\r\necho two\r\n", "one\ntwo\n"),
        ("cat <<END\r\none\r\ntwo\r\nEND\r\necho three", "one\ntwo\nthree\n"),
        ("if true; then\r\n  echo yes \\\r\n    no\r\nfi\r\n", "yes no\n"),
        ("echo one\r\r\necho two\r", "one\ntwo\n"),
        ("printf 'a\rb' | od -An -c", "   a  \\r   b\n"),
        ("printf 'a\r\nb' | wc -c", "3\n"),
    ],
)
def test_line_ends_of_windows_are_line_ends(tmp_path: Path, command: str, text: str) -> None:
    async def body(me: Caller) -> None:
        assert text_of(await me.bash(command)) == text

    on_caller(body, tmp_path)


def test_a_command_over_the_systems_limit_of_an_argument_runs_as_any_other(tmp_path: Path) -> None:
    text = "é" * 200_000

    async def body(me: Caller) -> None:
        command = f"cat; echo $0 $#; wc -c <<'END'\n{text}\nEND\ncd /; echo '{text}' > /dev/null; (exit 3)\n"
        output = await me.bash(command)
        assert text_of(output) == "bash 0\n400001\nexit code: 3"
        assert output.structured["cwd"] == str(me.place.cwd) == "/"
        task = (await me.call("BackgroundBash", command=command)).structured["task_id"]
        assert await me.workspace.wait(task, BOUND)
        assert (await me.call("ReadBgOutput", task_id=task)).structured["output"] == "bash 0\n400001\n"
        assert "bash: line 2: nothing: command not found" in told(await me.bash(f": '{text}'\nnothing"))

    on_caller(body, tmp_path)


def test_a_directory_that_is_not_recorded_is_said_to_stay(tmp_path: Path) -> None:
    async def body(me: Caller) -> None:
        root = me.workspace.root
        stays = f"the working directory stays {root}"
        assert text_of(await me.bash("cd /; exec echo hi")) == f"hi\n{stays}"
        await me.bash("mkdir a")
        me.settings = Settings(hold=0.3)
        output = await me.bash("(cd a && until [ -e ../go ]; do sleep 0.01; done)")
        assert text_of(output).endswith(f"KillBgTask ends it\n{stays}") and output.structured["cwd"] == str(root)
        assert stays not in text_of(await me.bash("until [ -e go ]; do sleep 0.01; done"))

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


def test_the_working_directory_persists_though_a_command_removes_what_records_it(tmp_path: Path) -> None:
    odd = tmp_path / "a 'b' ü"
    odd.mkdir()

    async def body(me: Caller) -> None:
        assert told(await me.bash(f"rm {shlex.quote(str(odd))}/spool/*.rc && echo removed")) == "removed\n"
        await me.bash("cd /")
        assert told(await me.bash("pwd")) == "/\n"

    on_caller(body, odd)


def test_long_output_loses_its_middle_and_says_where_all_of_it_is(tmp_path: Path) -> None:
    async def body(me: Caller) -> None:
        output = await me.bash("seq 100000; exit 2")
        whole = "".join(f"{number}\n" for number in range(1, 100_001))
        text, file = told(output), output.structured["output_file"]
        assert output.structured["truncated"] and output.structured["exit_code"] == 2
        assert len(text) <= 30_000
        first, _, rest = text.partition("\n")
        rest, _, last = rest.rpartition("\n[")
        head, count, tail = re.split(r"\n\[… ([\d,]+) characters dropped …\]\n", f"{rest}\n")
        assert whole.startswith(head) and whole.endswith(tail)
        assert first == f"[{len(whole):,} characters of output, the middle is left out; all of it is in {file}]"
        assert last == f"all of it is in {file}]"
        assert len(head) + int(count.replace(",", "")) + len(tail) == len(whole)
        assert text_of(output) == f"{text}\nexit code: 2"
        assert told(await me.bash(f"wc -c < {shlex.quote(file)}")).strip() == str(len(whole))

    on_caller(body, tmp_path)


def test_output_up_to_the_limit_is_whole_in_characters_not_bytes(tmp_path: Path) -> None:
    async def body(me: Caller) -> None:
        output = await me.bash("printf 'ü%.0s' $(seq 30000)")
        assert told(output) == "ü" * 30_000
        assert output.structured["output_file"] is None
        await until(lambda: not any(path.name.isdecimal() for path in (tmp_path / "spool").iterdir()))
        output = await me.bash("printf 'ü%.0s' $(seq 30001)")
        assert output.structured["truncated"]

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
        def release_at_the_end() -> None:
            if str(me.heard[-1][1]).endswith("\n100000\n"):
                (me.workspace.root / "heard").touch()

        me.wants_progress = True
        me.on_progress = release_at_the_end
        await me.bash("seq 100000; until [ -e heard ]; do sleep 0.01; done")
        messages = [str(message) for _, message, _ in me.heard]
        assert any(message.startswith("…") for message in messages)
        assert all(len(message) <= 4001 for message in messages)

    on_caller(body, tmp_path)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({"command": "true", "timeout": 0}, "timeout"),
        ({"command": "true", "timeout": 600_001}, "timeout"),
        ({"command": "a\0b"}, "NUL"),
        ({"command": "\ud800"}, "surrogate"),
        ({"command": ": " + "x" * 2**20}, "at most 1048576 are allowed"),
    ],
)
def test_a_command_that_can_not_run_is_refused_with_a_reason(tmp_path: Path, arguments: Any, says: str) -> None:
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
def test_an_unusable_environment_is_refused_with_a_reason(
    tmp_path: Path, environment: dict[str, str], says: str
) -> None:
    async def body(me: Caller) -> None:
        output = await me.bash("true")
        assert output.is_error and says in text_of(output)

    on_caller(body, tmp_path, {"PATH": ENVIRONMENT["PATH"], **environment})


def test_a_command_in_a_removed_workspace_is_refused_with_a_reason(tmp_path: Path) -> None:
    async def body(me: Caller) -> None:
        me.workspace.root.rmdir()
        told = text_of(await me.bash("true"))
        assert "can't enter the folder" in told and "No such file or directory" in told

    on_caller(body, tmp_path)


def test_eight_commands_at_once_overlap(tmp_path: Path) -> None:
    async def body(me: Caller) -> None:
        await me.bash("true")
        began = time.monotonic()
        outputs = await asyncio.gather(*(me.bash(f"sleep 1; echo {number}") for number in range(8)))
        assert time.monotonic() - began < 6
        assert [told(output) for output in outputs] == [f"{number}\n" for number in range(8)]

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
    hints = {tool.name: (msgspec.structs.asdict(tool.annotations), tool.scope) for tool in TOOLS}

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

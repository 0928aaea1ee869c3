"""`toolgate audit` and `audit verify`, as an operator runs them."""

import asyncio
import json
import signal
import subprocess
import threading
import time
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.clients.raw_client import COMMAND, PATIENCE, eventually
from tests.server.auth.minted_tokens import asked, signed_site
from tests.server.cli.commands.test_user_and_client import PASSWORD
from tests.server.cli.test_cli import run
from toolgate.server.base.errors import UsageError
from toolgate.server.base.principals.principal import derive_subject
from toolgate.server.base.principals.scopes import SERVED
from toolgate.server.base.text import format_time
from toolgate.server.cli import main
from toolgate.server.cli.parsing.command_line import parse_words
from toolgate.server.features.telemetry.audit.log import AuditLog
from toolgate.server.state.audit.entry import AuditEntry
from toolgate.server.state.rows import grants as grant_rows
from toolgate.server.state.rows import people as people_rows
from toolgate.server.state.sqlite.store import SqliteStore

HOSTILE = "\x1b]0;owned\x07\x9b31m\u202egnp\r\n\x7f"
BASE = AuditEntry(0, "", "local", "tests", "", "Bash", None, "d" * 64, None, "allowed", "none", "ok", 0, 1.5, 10)


def command(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return run(folder, "--state", str(folder / "state"), *words)


def write(folder: Path, *entries: dict[str, Any]) -> None:
    async def work() -> None:
        log = AuditLog(folder / "state" / "audit", folder / "state" / "keys" / "audit")
        for changes in entries:
            entry = msgspec.structs.replace(BASE, **changes)
            log.add(entry)
            entry.time = changes.get("time", entry.time)  # it is written at the next turn
        log.close()

    asyncio.run(work())


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with a recorded state that no test changes."""
    folder = tmp_path_factory.mktemp("record")
    write(
        folder,
        {"tool": "Bash", "time": "2026-01-01T10:00:00.000Z", "exit": 3},
        {"tool": "git_log", "time": "2026-01-02T10:00:00.000Z", "principal": "u-" + "a" * 40, "outcome": "error"},
        {"tool": "git_push", "time": "2026-01-03T10:00:00.000Z", "decision": "denied", "outcome": "refused"},
        {"tool": HOSTILE, "time": "2026-01-04T10:00:00.000Z", "client": HOSTILE, "arguments": {"x": HOSTILE}},
    )
    return folder


def test_apps_are_called_what_they_are_called_and_arguments_are_readable(tmp_path: Path) -> None:
    made = command(tmp_path, "client", "add", "Fernhill", "https://fern.example/back")
    id = made.stdout.split()[2]
    write(tmp_path, {"tool": "Bash", "client": id, "arguments": {"command": "echo عربي \u202e"}})
    table = command(tmp_path, "audit").stdout
    assert "Fernhill" in table and id not in table
    assert "echo عربي \\u202e" in table
    assert json.loads(command(tmp_path, "audit", "--json").stdout)["client"] == id


def shown(folder: Path, *words: str) -> list[str]:
    """Return the tools of the calls shown."""
    done = command(folder, "audit", "--json", *words)
    assert done.returncode == 0, done.stderr
    return [json.loads(line)["tool"] for line in done.stdout.splitlines()]


@pytest.mark.parametrize(
    ("words", "tools"),
    [
        ([], ["Bash", "git_log", "git_push", HOSTILE]),
        (["--last", "2"], ["git_push", HOSTILE]),
        (["--last", "0"], ["Bash", "git_log", "git_push", HOSTILE]),
        (["--tool", "git_*"], ["git_log", "git_push"]),
        (["--tool", "git_*", "--last", "1"], ["git_push"]),
        (["--outcome", "error"], ["git_log"]),
        (["--decision", "denied"], ["git_push"]),
        (["--decision", "approved_session"], []),
        (["--principal", "u-" + "a" * 40], ["git_log"]),
        (["--principal", "u-aaaaaa"], ["git_log"]),
        (["--principal", "u-a"], []),
        (["--principal", "local", "--until", "2026-01-01T12:00"], ["Bash"]),
        (["--since", "2026-01-03", "--until", "2026-01-03T12:00:00+01:00"], ["git_push"]),
        (["--since", "2026-01-03T10:00:00.001Z"], [HOSTILE]),
        (["--until", "20000d"], []),
    ],
)
def test_what_is_asked_for_is_shown(kept: Path, words: list[str], tools: list[str]) -> None:
    assert shown(kept, *words) == tools


def test_the_newest_calls_are_read_from_the_end(tmp_path: Path) -> None:
    """A damaged first line shows what is read: it is mentioned."""
    write(tmp_path, *({"tool": f"t{n}", "time": format_time(1_800_000_000.0 + n)} for n in range(3_000)))
    log = tmp_path / "state" / "audit" / "audit.jsonl"
    log.write_bytes(log.read_bytes().replace(b'"tool":"t0"', b'"tool":"tX"'))
    since = ("--since", format_time(1_800_002_997.0))
    for words, found in (
        (("--last", "2"), ["t2998", "t2999"]),
        ((*since, "--last", "0"), ["t2997", "t2998", "t2999"]),
        ((*since, "--tool", "none"), []),
    ):
        done = command(tmp_path, "audit", "--json", *words)
        assert [json.loads(line)["tool"] for line in done.stdout.splitlines()] == found
        assert "can't be trusted" not in done.stderr
    assert "1 line can't be trusted and is left out" in command(tmp_path, "audit", "--last", "0").stderr


def test_calls_before_a_clock_was_set_back_are_shown(tmp_path: Path) -> None:
    times = [1_800_003_600.0 + n for n in range(10)] + [1_800_000_000.0 + n for n in range(500)]
    write(tmp_path, *({"tool": f"t{n}", "time": format_time(at)} for n, at in enumerate(times)))
    assert shown(tmp_path, "--since", format_time(1_800_003_605.0), "--last", "0") == [f"t{n}" for n in range(5, 10)]


def test_the_table_is_for_people_and_safe_for_their_terminal(kept: Path) -> None:
    done = command(kept, "audit")
    heading, first, *rest = done.stdout.splitlines()
    assert heading.split() == [
        "TIME",
        "PRINCIPAL",
        "CLIENT",
        "TOOL",
        "DECISION",
        "OUTCOME",
        "EXIT",
        "MS",
        "BYTES",
        "ARGUMENTS",
    ]
    assert first.split() == [
        "2026-01-01T10:00:00.000Z",
        "local",
        "tests",
        "Bash",
        *["allowed", "ok", "3", "1.5", "10"],
        "d" * 12,
    ]
    assert len(rest) == 3 and "\\x1b]0;owned" in rest[2]
    for told in (done.stdout, command(kept, "audit", "--json").stdout):
        assert all(line.isprintable() for line in told.split("\n"))


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (["audit", "nonsense"], "nonsense"),
        (["audit", "verify", "more"], "more"),
        (["audit", "verify", "--last", "3"], "--last"),
        (["audit", "--last", "some"], "--last"),
        (["audit", "--since", "tomorrow"], "--since"),
        (["audit", "--until", "9" * 30 + "d"], "--until"),
        (["tools", "--last", "3"], "--last"),
        (["serve", "--follow"], "--follow"),
        (["serve", "--audit", "some"], "--audit"),
    ],
)
def test_what_is_wrong_with_the_words_is_said(kept: Path, words: list[str], named: str) -> None:
    done = command(kept, *words)
    assert done.returncode == 2 and named in done.stderr and "Traceback" not in done.stderr


def test_a_whole_record_is_verified_and_a_broken_one_named(tmp_path: Path) -> None:
    write(tmp_path, {"tool": "a"}, {"tool": "b"}, {"tool": "c"})
    file = tmp_path / "state" / "audit" / "audit.jsonl"
    done = command(tmp_path, "audit", "verify")
    newest = json.loads(file.read_text().splitlines()[-1])["hash"]
    assert done.returncode == 0 and done.stdout.startswith("intact: lines 1 to 4, ")
    assert done.stdout.splitlines()[-1] == f"newest: 4 {newest}"
    file.write_bytes(file.read_bytes().replace(b'"b"', b'"x"'))
    done = command(tmp_path, "audit", "verify")
    assert done.returncode == 1
    assert done.stdout.splitlines()[0].startswith("BROKEN: audit.jsonl:3: the line was changed")
    told = command(tmp_path, "audit", "--json")
    assert '"x"' not in told.stdout and "1 line can't be trusted" in told.stderr
    (tmp_path / "state" / "keys" / "audit").unlink()
    for words in (["audit"], ["audit", "verify"]):
        done = command(tmp_path, *words)
        assert done.returncode == 1 and "without its key" in done.stderr
    assert not (tmp_path / "state" / "keys" / "audit").exists()


def test_where_nothing_is_on_record_that_is_said_and_nothing_made(tmp_path: Path) -> None:
    for words in (["audit"], ["audit", "verify"]):
        done = command(tmp_path, *words)
        assert (done.returncode, done.stdout) == (0, "") and "nothing is on record" in done.stderr
    assert not (tmp_path / "state").exists()


def test_a_record_of_which_only_the_key_is_left_is_broken(tmp_path: Path) -> None:
    write(tmp_path)
    done = command(tmp_path, "audit", "verify")
    assert (done.returncode, done.stdout) == (0, "the record is empty\n")
    write(tmp_path, {"tool": "a"})
    folder = tmp_path / "state" / "audit"
    for path in folder.iterdir():
        path.unlink()
    for _ in range(2):
        done = command(tmp_path, "audit", "verify")
        assert done.returncode == 1 and done.stdout.startswith("BROKEN: "), done
        if folder.exists():
            folder.rmdir()


def test_people_are_called_what_they_are_called(tmp_path: Path) -> None:
    (tmp_path / "home").mkdir()
    added = run(tmp_path, "--state", str(tmp_path / "state"), "user", "add", "ada", stdin=PASSWORD)
    assert added.returncode == 0

    def put(connection: Any) -> str:
        known = people_rows.find_account(connection, "ada").subject  # the server ends the access of others
        subject = derive_subject(people_rows.BUILT_IN, known)
        row = {"issuer": people_rows.BUILT_IN, "known_as": known, "name": "Ada Lovelace", "email": None}
        grant_rows.save_person(connection, subject, seen_at=time.time(), **row)
        return subject

    async def work() -> str:
        store = SqliteStore(tmp_path / "state")
        try:
            return await store.transact(put)
        finally:
            store.close()

    subject = asyncio.run(work())
    with signed_site(tmp_path) as signed:
        call = {"name": "Bash", "arguments": {"command": "true"}}
        assert asked(signed, signed.token(subject, "client", SERVED), "tools/call", call)[0].status == 200
        assert eventually(lambda: "Ada Lovelace" in command(tmp_path, "audit").stdout)
    assert shown(tmp_path, "--principal", "Ada Lovelace") == ["Bash"]
    assert shown(tmp_path, "--principal", "Bob") == []


def test_follow_goes_on_with_what_comes(tmp_path: Path) -> None:
    write(tmp_path, {"tool": "before"})
    words = [COMMAND, "--state", str(tmp_path / "state"), "audit", "--follow", "--json"]
    environment = {"PATH": "/usr/bin:/bin", "HOME": str(tmp_path)}
    following = subprocess.Popen(words, stdout=subprocess.PIPE, text=True, env=environment, cwd=tmp_path)
    stuck = threading.Timer(PATIENCE, following.kill)
    stuck.start()
    try:
        assert following.stdout is not None
        assert json.loads(following.stdout.readline())["tool"] == "before"
        for tool in ("next", "last"):
            write(tmp_path, {"tool": tool})
            assert json.loads(following.stdout.readline())["tool"] == tool
        following.send_signal(signal.SIGINT)
        assert following.wait(PATIENCE) == 0
    finally:
        stuck.cancel()
        following.kill()
        following.communicate()


@pytest.mark.parametrize(
    ("words", "remedy"),
    [
        ("audit verfy", "audit: unknown command 'verfy' (did you mean verify?)"),
        ("tools --last 3", "tools: --last does not belong here (it belongs to audit)"),
    ],
)
def test_a_wrong_command_line_is_refused_with_a_remedy(words: str, remedy: str) -> None:
    with pytest.raises(UsageError) as refused:
        parse_words(words.split())
    assert remedy in str(refused.value)


def test_the_help_of_a_command_names_those_that_begin_with_it(capsys: pytest.CaptureFixture[str]) -> None:
    assert main.run(["audit", "--help"]) == 0
    assert "\n  audit verify  check that" in capsys.readouterr().out

"""The record of each call through the real server, on every transport, and what it never has."""

import asyncio
import calendar
import hashlib
import json
import os
import signal
import stat
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.clients.raw_client import STATELESS, WITH_SESSION, Server, eventually
from tests.clients.raw_http_client import site, spoken
from tests.clients.raw_task_client import KNOWS, created, ended
from tests.server.auth.minted_tokens import asked, request, session, signed_site
from toolgate.server.base.principals.principal import Principal
from toolgate.server.base.principals.scopes import READ, SERVED
from toolgate.server.calls.observers import CallEnd
from toolgate.server.features.telemetry.audit import reader
from toolgate.server.features.telemetry.audit.file_store import AuditFileStore
from toolgate.server.features.telemetry.audit.recorder import create_recorder
from toolgate.server.features.telemetry.audit.redaction import MAX_BYTES, REDACTED, redact, redact_text
from toolgate.server.protocol.session import Call, Session
from toolgate.server.state.keys import file as key_file
from toolgate.tools.api.content import Output, Text

Start = Callable[..., Server]
FIELDS = ["seq", "time", "principal", "client", "session", "tool", "task", "digest", "arguments", "decision"]
FIELDS += ["sandbox", "outcome", "exit", "duration_ms", "bytes", "prev", "hash"]


def recorded(state: Path, least: int = 1) -> list[dict[str, Any]]:
    """Return the entries of all calls, once there are so many."""
    found: list[dict[str, Any]] = []

    def there() -> bool:
        file = state / "audit" / "audit.jsonl"
        told = file.read_text().splitlines(keepends=True) if file.exists() else []
        if told and not told[-1].endswith("\n"):  # it is being written
            del told[-1]
        found[:] = [entry for entry in map(json.loads, told) if "tool" in entry]
        return len(found) >= least

    assert eventually(there), found
    verdict = reader.verify(state / "audit", key_file.read_key(state / "keys" / "audit"))
    assert verdict.findings == []
    return found


def digest(arguments: Any) -> str:
    return hashlib.sha256(json.dumps(arguments, separators=(",", ":"), sort_keys=True).encode()).hexdigest()


def test_a_call_leaves_one_line_with_all_there_is_to_say(connect: Start) -> None:
    server = connect("--audit", "on")
    before = time.time()
    server.call("Bash", {"command": "printf 'h\\303\\251'; exit 3"})
    (entry,) = recorded(server.state)
    assert list(entry) == FIELDS
    assert before - 1 <= calendar.timegm(time.strptime(entry["time"][:19], "%Y-%m-%dT%H:%M:%S"))
    told = {
        name: entry[name] for name in FIELDS if name not in ("seq", "time", "duration_ms", "prev", "hash", "session")
    }
    assert told == {
        "principal": "local",
        "client": "tests",
        "tool": "Bash",
        "task": None,
        "digest": digest({"command": "printf 'h\\303\\251'; exit 3"}),
        "arguments": None,
        "decision": "allowed",
        "sandbox": "none",
        "outcome": "ok",
        "exit": 3,
        "bytes": len("hé\nexit code: 3".encode()),
    }
    assert entry["duration_ms"] > 0 and len(entry["session"]) == 12


def test_whatever_becomes_of_a_call_is_on_record(connect: Start) -> None:
    calls: list[tuple[str, Any, str]] = [
        ("echo", {"text": "hi"}, "ok"),
        ("echo", {"text": 5}, "error"),
        ("refuse", {}, "error"),
        ("nonsense", {}, "refused"),
        ("echo", "no object", "refused"),
        ("crash", {}, "fault"),
        ("leave", {}, "fault"),
    ]
    server = connect("--audit", "on")
    for number, (tool, arguments, outcome) in enumerate(calls, 1):
        id = server.begin("tools/call", {"name": tool, "arguments": arguments})
        server.wait(lambda said, id=id: said.get("id") == id)
        entry = recorded(server.state, number)[-1]
        assert (entry["tool"], entry["outcome"], entry["digest"]) == (tool, outcome, digest(arguments))
    assert "the secret" not in (server.state / "audit" / "audit.jsonl").read_text()


def test_a_cancelled_call_is_on_record(connect: Start) -> None:
    server = connect("--audit", "on")
    id = server.begin("tools/call", {"name": "wait", "arguments": {"seconds": 600}}, progressToken="here")
    server.wait(lambda said: said.get("method") == "notifications/progress")
    server.notify("notifications/cancelled", {"requestId": id})
    (entry,) = recorded(server.state)
    assert (entry["tool"], entry["outcome"]) == ("wait", "cancelled")


def test_a_call_that_took_too_long_is_on_record(connect: Start) -> None:
    server = connect("--audit", "on", "--hold", "0.3")
    server.error("wait", {"seconds": 600})
    (entry,) = recorded(server.state)
    assert entry["outcome"] == "error" and entry["duration_ms"] >= 250


@pytest.mark.parametrize("revision", WITH_SESSION)
def test_the_exit_code_is_on_record_in_every_revision(start: Start, revision: str) -> None:
    server = start("--audit", "on", revision=revision)
    server.call("Bash", {"command": "exit 4"})
    assert [entry["exit"] for entry in recorded(server.state)] == [4]


@pytest.mark.parametrize("transport", ["stdio", "http"])
def test_a_call_that_asks_first_and_one_that_becomes_a_task_leave_two_lines(tmp_path: Path, transport: str) -> None:
    from tests.clients.raw_client import served
    from tests.conftest import PROBE

    how: dict[str, Any] = {"revision": STATELESS, "capabilities": KNOWS}
    with site(tmp_path, *PROBE) if transport == "http" else served(tmp_path, *PROBE, "--audit", "on", **how) as held:
        if isinstance(held, Server):
            lines_of_a_task(held, tmp_path)
        else:
            with spoken(held, "http", **how) as server:
                lines_of_a_task(server, tmp_path)


def lines_of_a_task(server: Server, folder: Path) -> None:
    server.call("ask")
    file = folder / "go"
    id = created(server, "job", file=str(file))
    file.touch()
    ended(server, id)
    soon = created(server, "only_a_job")
    ended(server, soon)
    called_off = created(server, "job", file=str(folder / "never"))
    server.request("tasks/cancel", {"taskId": called_off})
    entries = recorded(server.state, 7)
    assert [(entry["tool"], entry["outcome"]) for entry in entries[:1]] == [("ask", "asked")]
    for task, tool, end in ((id, "job", "ok"), (soon, "only_a_job", "ok"), (called_off, "job", "cancelled")):
        mine = [entry for entry in entries if entry["task"] == task]
        assert {entry["outcome"] for entry in mine} == {"task", end} and len(mine) == 2
        assert {entry["tool"] for entry in mine} == {tool} and len({entry["digest"] for entry in mine}) == 1
    assert len(entries) == 7


def test_a_task_that_died_with_its_server_ends_on_record(probe: Start, tmp_path: Path) -> None:
    how = {"revision": STATELESS, "capabilities": KNOWS}
    first = probe("--audit", "on", **how)
    id = created(first, "harmful_job", file=str(tmp_path / "go"))
    recorded(first.state)
    first.process.send_signal(signal.SIGKILL)
    first.process.wait()
    second = probe("--audit", "on", **how)
    ended(second, id)
    begun, over = recorded(second.state, 2)
    assert (begun["task"], begun["outcome"], over["task"], over["outcome"]) == (id, "task", id, "fault")
    assert over["tool"] == "harmful_job" and 0 <= over["duration_ms"] < 86_400_000


def test_a_task_that_is_done_again_after_a_kill_ends_on_record(probe: Start, tmp_path: Path) -> None:
    how = {"revision": STATELESS, "capabilities": KNOWS}
    first = probe("--audit", "on", **how)
    file = tmp_path / "go"
    id = created(first, "job", file=str(file))
    recorded(first.state)
    first.process.send_signal(signal.SIGKILL)
    first.process.wait()
    file.touch()
    second = probe("--audit", "on", **how)
    ended(second, id)
    begun, over = recorded(second.state, 2)
    assert (begun["task"], begun["outcome"], over["task"], over["outcome"]) == (id, "task", id, "ok")
    assert (begun["tool"], begun["digest"]) == (over["tool"], over["digest"])


def test_a_kill_loses_no_more_than_what_was_answered_in_that_instant(probe: Start) -> None:
    for _ in range(3):
        server = probe("--audit", "on")
        for number in range(20):
            server.call("echo", {"text": str(number)})
        server.begin("tools/call", {"name": "wait", "arguments": {"seconds": 600}})
        for number in range(50):
            server.begin("tools/call", {"name": "echo", "arguments": {"text": str(number)}})
        server.process.send_signal(signal.SIGKILL)
        server.process.wait()
    assert len(recorded(server.state)) >= 3 * 19


def test_over_stdio_nothing_is_recorded_unless_asked_for_and_over_http_unless_told_not_to(
    start: Start, tmp_path: Path
) -> None:
    silent = start()
    silent.call("Bash", {"command": "true"})
    assert not (silent.state / "audit").exists() and not (silent.state / "keys" / "audit").exists()
    for options, is_there in (((), True), (("--audit", "off"), False)):
        with site(tmp_path / f"http{len(options)}", *options) as listening:
            with spoken(listening, "http") as server:
                server.call("Bash", {"command": "true"})
            assert (listening.state / "audit").exists() == is_there
            if is_there:
                assert [entry["tool"] for entry in recorded(listening.state)] == ["Bash"]


def test_a_call_without_a_scope_is_recorded_with_its_caller_and_without_secrets(tmp_path: Path) -> None:
    with signed_site(tmp_path) as signed:
        poor, rich = signed.token("ada", "client", [READ]), signed.token("eve", "other", SERVED)
        id = session(signed, poor)
        call = {"name": "Bash", "arguments": {"command": "echo hunter2"}}
        body, told = request("tools/call", call), {"authorization": f"Bearer {poor}", "mcp_session_id": id}
        assert signed.site.ask("POST", "/mcp", body, **told)[0].status == 403
        assert asked(signed, poor, "tools/call", call)[0].status == 403
        assert asked(signed, poor, "tools/list")[0].status == 200
        assert asked(signed, rich, "tools/call", call)[0].status == 200
        ada, eve = Principal("toolgate", "ada", "").name, Principal("toolgate", "eve", "").name
        entries = recorded(signed.site.state, 3)
        kept = [(entry["principal"], entry["client"], entry["decision"], entry["outcome"]) for entry in entries]
        assert kept == [(ada, "client", "scope", "refused")] * 2 + [(eve, "other", "allowed", "ok")]
        written = b"".join(path.read_bytes() for path in (signed.site.state / "audit").iterdir())
        for secret in (poor, rich, id, "hunter2"):
            assert secret.encode() not in written
        for path in (signed.site.state / "audit").iterdir():
            assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_full_keeps_the_arguments_but_not_their_secrets(start: Start) -> None:
    server = start("--audit", "full")
    server.call("Bash", {"command": "echo hi; TOKEN=hunter2 true; curl -s file://u:hunter2@h/ || :"})
    server.call("Bash", {"command": "echo " + "x" * 50_000})
    first, second = recorded(server.state, 2)
    assert first["arguments"] == {"command": f"echo hi; TOKEN={REDACTED} true; curl -s file://{REDACTED}@h/ || :"}
    assert len(json.dumps(second["arguments"])) < 2 * MAX_BYTES
    assert first["digest"] == digest({"command": "echo hi; TOKEN=hunter2 true; curl -s file://u:hunter2@h/ || :"})


def test_two_servers_on_one_state_keep_one_chain(start: Start) -> None:
    one, two = start("--audit", "on"), start("--audit", "on")
    for _ in range(5):
        one.call("TaskManager", {"action": "list"})
        two.call("TaskManager", {"action": "list"})
    entries = recorded(one.state, 10)
    assert len({entry["session"] for entry in entries}) == 2


def test_calls_go_on_when_the_record_cannot_be_written(start: Start) -> None:
    server = start("--audit", "on")
    server.call("Bash", {"command": "true"})
    recorded(server.state)
    folder = server.state / "audit"
    os.rename(folder, folder.with_name("gone"))
    for _ in range(3):
        assert server.text("Bash", {"command": "echo hi"}) == "hi\n"
    assert eventually(lambda: "the audit log can't be written" in server.log())
    os.rename(folder.with_name("gone"), folder)
    assert len(recorded(server.state, 4)) == 4
    assert server.log().count("the audit log can't be written") == 1


def test_a_damaged_key_stops_the_start(start: Start, tmp_path: Path) -> None:
    server = start("--audit", "on")
    assert server.close() == 0
    (server.state / "keys" / "audit").write_bytes(b"short")
    again = start("--audit", "on", handshake=False)
    assert again.process.wait(40) == 2 and "--audit: " in again.log() and "is damaged" in again.log()


@pytest.mark.parametrize(
    ("given", "kept"),
    [
        ("curl -H 'Authorization: Bearer abc.def' x", f"curl -H 'Authorization: {REDACTED}' x"),
        ("a bearer AbCdEf123456 b", f"a bearer {REDACTED} b"),
        ("git clone https://me:secret@example.com/x", f"git clone https://{REDACTED}@example.com/x"),
        ("ghp_abcdefghijklmnopqrstuvwxyz0123456789", REDACTED),
        ("use sk-proj-abcdefghijklmnop now", f"use {REDACTED} now"),
        ("AKIAIOSFODNN7EXAMPLE", REDACTED),
        ("AWS_SECRET_ACCESS_KEY=wJalrXUtnFEMI/K7MDENG aws s3 ls", f"AWS_SECRET_ACCESS_KEY={REDACTED} aws s3 ls"),
        ("mysql --password=hunter2 -e x", f"mysql --password={REDACTED} -e x"),
        ("login --token hunter2 now", f"login --token {REDACTED} now"),
        ("MY_TOKEN='two words' run", f"MY_TOKEN={REDACTED} run"),
        ("SSH_KEY=abc;ls", f"SSH_KEY={REDACTED};ls"),
        ('{"password": "hunter2", "user": "me"}', f'{{"password": {REDACTED}, "user": "me"}}'),
        ("x?access_token=abc&y=1", f"x?access_token={REDACTED}&y=1"),
        ("curl -u me:hunter2 x", f"curl -u {REDACTED} x"),
        ("Cookie: a=b; c=d\nnext", f"Cookie: {REDACTED}\nnext"),
        ("-----BEGIN RSA PRIVATE KEY-----\nabc\n-----END RSA PRIVATE KEY----- x", f"{REDACTED} x"),
        ("-----BEGIN PRIVATE KEY-----\nabc", REDACTED),
        ("eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxIn0.abc", REDACTED),
        ("git status --short && ls -la *.py", "git status --short && ls -la *.py"),
        ("author=me; keyboard: de", "author=me; keyboard: de"),
    ],
)
def test_likely_secrets_are_redacted_and_the_rest_is_not(given: str, kept: str) -> None:
    assert redact_text(given) == kept


def test_arguments_of_secret_names_are_redacted_however_deep() -> None:
    given = {"a": [{"api_key": "x1", "Password": ["x2"], "n": 1, "none": None}], "secret": None, "tokens": 5}
    kept = json.loads(bytes(redact(given)))
    assert kept == {
        "a": [{"api_key": REDACTED, "Password": REDACTED, "n": 1, "none": None}],
        "secret": None,
        "tokens": REDACTED,
    }


@pytest.mark.parametrize(
    "hostile",
    [
        {"a": "token" * 200_000},
        {"a": "-" * 1_000_000},
        {"a": ["a-" * 5_000 + "token"] * 5_000},
        {"a": "://" * 300_000},
        {"a": "eyJ-" * 100_000},
        {"a": "-----BEGIN PRIVATE KEY-----" * 30_000},
        {"a": " " * 1_000_000 + "="},
        {"a": '="' * 300_000},
        {f"k{number}": "password=x" for number in range(100_000)},
    ],
    ids=range(9),
)
def test_redacting_hostile_arguments_takes_no_time(hostile: dict[str, Any]) -> None:
    before = time.process_time()
    told = redact(hostile)
    assert time.process_time() - before < 1.0
    assert len(told if isinstance(told, str) else bytes(told)) <= MAX_BYTES + 1
    nested: Any = "password=x"
    for _ in range(900):
        nested = [nested]
    assert "=x" not in json.dumps(json.loads(bytes(redact({"a": nested}))))


def test_two_ends_of_a_call_in_one_turn_have_a_line_each(tmp_path: Path) -> None:
    async def main() -> None:
        recorder = create_recorder(AuditFileStore(tmp_path).open_log(), "on", lambda _: None)
        silent: Any = None
        call = Call(1, "tools/call", {"name": "Bash", "arguments": {}}, Session("ada"), silent)
        begun = recorder.call_started(call)
        call.output = Output([Text("six")])
        recorder.call_ended(call, begun, CallEnd("cancelled", "task-1", 1.0))
        call.output = None
        recorder.call_ended(call, begun, CallEnd("fault", None, 2.0))
        await recorder.aclose()

    asyncio.run(main())
    told = [(line["task"], line["outcome"], line["duration_ms"], line["bytes"]) for line in recorded(tmp_path, 2)]
    assert told == [("task-1", "cancelled", 1000.0, 3), (None, "fault", 2000.0, 0)]

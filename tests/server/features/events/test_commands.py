"""`toolgate events`: list the types, follow them at a server that restarts, and send a test."""

import asyncio
import contextlib
import json
import signal
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest.mock import AsyncMock, MagicMock

import msgspec
import pytest

from tests.clients.raw_client import COMMAND, PATIENCE
from tests.clients.raw_http_client import Site, site
from tests.server.cli.commands.test_call_servers import CLEAR, SHOWN, FakeMcpServer
from tests.server.cli.commands.test_call_servers import server as server  # a fixture
from tests.server.cli.test_cli import run
from tests.servers.reserved_port import kept_port
from toolgate.server.cli import main
from toolgate.server.features.events.commands.events import EventFollower
from toolgate.server.features.events.log.errors import EventError
from toolgate.server.features.events.log.samples import MARK, TEXT, make_sample
from toolgate.server.features.events.sources.types import EVENTS
from toolgate.server.protocol.request_meta import SUBSCRIPTION
from toolgate.tools.api.event import event

LOCAL = ("--auth", "none")
NEEDS = {"command.output": {"pattern": "err*"}, "file.changed": {"path": "notes.md"}}


@contextlib.contextmanager
def followed(folder: Path, *words: str) -> Iterator["subprocess.Popen[str]"]:
    """Run `toolgate events follow`, and kill it at the end, or when it hangs."""
    environment = {"PATH": "/usr/bin:/bin", "HOME": str(folder)}
    pipes: Any = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    process = subprocess.Popen([COMMAND, "events", "follow", *words], **pipes, env=environment, cwd=folder)
    stuck = threading.Timer(PATIENCE, process.kill)
    stuck.start()
    try:
        yield process
    finally:
        stuck.cancel()
        process.kill()
        process.communicate()


def send_tests(folder: Path, site: Site, name: str, *arguments: str) -> list[str]:
    """Send tests until somebody waits for them, and return their ids."""
    while True:
        sent = run(folder, "events", "test", name, *arguments, "--url", f"{site.url}/mcp")
        if sent.returncode == 0:
            return [line.removeprefix("sent ") for line in sent.stdout.splitlines()]
        assert "nobody waits" in sent.stderr, sent.stderr


def test_events_are_listed_tested_and_followed_over_a_restart(tmp_path: Path) -> None:
    port = f"--port={kept_port()}"
    with site(tmp_path / "one", *LOCAL, port) as first:
        listed = run(tmp_path, "events", "--url", f"{first.url}/mcp")
        assert "command.output(pattern*, id)\n    A background task" in listed.stdout
        lines = run(tmp_path, "events", "list", "--json", "--url", f"{first.url}/mcp").stdout.splitlines()
        assert {json.loads(line)["name"] for line in lines} == {type.name for type in EVENTS}
        assert run(tmp_path, "events", "test", "callback.fired", "--url", f"{first.url}/mcp").returncode == 1
        with followed(tmp_path, "--json", "--url", f"{first.url}/mcp") as process:
            assert process.stdout is not None and process.stderr is not None
            assert "Not included (they need arguments): command.output, file.changed" in process.stderr.readline()
            following = process.stderr.readline()
            assert (
                "following " in following
                and " command.ended, " in following
                and following.endswith("; Ctrl-C ends it\n")
            )
            (id,) = send_tests(tmp_path, first, "command.ended", "id=7")
            shown = json.loads(process.stdout.readline())
            assert (shown["eventId"], shown["name"]) == (id, "command.ended")
            assert id.startswith("evt_test_")
            assert shown["data"] == {
                "id": 7,
                "command": TEXT,
                "status": TEXT,
                "exit_code": 0,
                "runtime_ms": 0,
                "last_lines": TEXT,
                MARK: True,
            }
            assert first.stop() == 0
            assert "trying again" in process.stderr.readline()
            with site(tmp_path / "one", *LOCAL, port) as second:
                (id,) = run(tmp_path, "events", "test", "todo.changed", "--url", f"{second.url}/mcp").stdout.split()[1:]
                assert json.loads(process.stdout.readline())["eventId"] == id
                process.send_signal(signal.SIGINT)
                assert process.wait(PATIENCE) == 0


def test_lines_are_for_people_and_the_end_of_a_pipe_is_no_fault(shared: Site, tmp_path: Path) -> None:
    url = f"{shared.url}/mcp"
    with followed(tmp_path, "todo.changed", "change=created", "--url", url) as process:
        assert process.stdout is not None
        send_tests(tmp_path, shared, "todo.changed", "change=created")
        time, *cells = process.stdout.readline().split("  ")
        assert time.endswith("Z") and cells[:3] == ["todo.changed", "task_id=0", f'name="{TEXT}"']
        assert "change=created" in cells and f"{MARK}=true\n" in cells
        process.stdout.close()
        while process.poll() is None:
            run(tmp_path, "events", "test", "todo.changed", "change=created", "--url", url)
        assert process.returncode == 0
        assert process.stderr is not None
        assert process.stderr.read() == "toolgate: following todo.changed; Ctrl-C ends it\n"


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (["follow", "comand.ended"], 2, "unknown type 'comand.ended' (did you mean command.ended?)"),
        (["follow", "command.ended", "7"], 2, "events follow: '7' is not ARGUMENT=VALUE, such as id="),
        (["follow", "command.output"], 1, "pattern"),
        (["test", "command.ended", "id=x"], 1, "'arguments' of command.ended"),
        (["test"], 2, "events test: TYPE is missing; toolgate events lists them"),
        (["folow"], 2, "unknown command 'folow' (did you mean follow?)"),
    ],
)
def test_mistakes_are_explained(
    shared: Site, words: list[str], code: int, said: str, monkeypatch: pytest.MonkeyPatch, capsys: Any, tmp_path: Path
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    assert main.run(["events", *words, "--url", f"{shared.url}/mcp"]) == code
    assert said in capsys.readouterr().err


def test_what_a_server_sends_can_not_control_the_terminal(server: FakeMcpServer, capsys: Any) -> None:
    type = {"name": f"a{CLEAR}", "description": f"b{CLEAR}", "inputSchema": {}}
    server.answers["events/list"] = {"result": {"events": [type]}}
    server.answers["toolgate/events/test"] = {"result": {"eventIds": [f"c{CLEAR}"]}}
    server.answers["events/stream"] = {"error": {"code": -32603, "message": f"d{CLEAR}"}}
    assert main.run(["events", "--url", server.url]) == 0
    assert main.run(["events", "test", f"a{CLEAR}", "--url", server.url]) == 0
    assert main.run(["events", "follow", "--url", server.url]) == 1
    printed = capsys.readouterr()
    assert printed.out == f"a{SHOWN}()\n    b{SHOWN}\nsent c{SHOWN}\n"
    assert printed.err == f"toolgate: following a{SHOWN}; Ctrl-C ends it\ntoolgate: -32603 d{SHOWN}\n"


def test_a_notification_that_names_no_stream_is_left_out(capsys: pytest.CaptureFixture[str]) -> None:
    async def follow() -> None:
        client, answer = MagicMock(), asyncio.get_running_loop().create_future()
        client.request = AsyncMock(return_value={"events": [{"name": "command.ended"}]})
        client.send_request.return_value = 1, answer
        follower = EventFollower("command.ended", [], is_json=True)
        following = asyncio.create_task(follower.run(client))
        while not client.send_request.called:
            await asyncio.sleep(0)
        for id in ([], {}, "1", 2, None, 1):
            follower.note("notifications/events/event", {"_meta": {SUBSCRIPTION: id}, "eventId": str(id)})
        answer.set_result({})
        await asyncio.wait_for(following, PATIENCE)

    asyncio.run(follow())
    assert capsys.readouterr().out == '{"eventId": "1"}\n'


class Range(msgspec.Struct):
    low: int
    high: int | None


class Measured(msgspec.Struct):
    kind: str
    ranges: list[Range]
    best: Range | None
    at: str


def declared(payload: Any) -> Any:
    def measured() -> None:
        """Something was measured."""

    return event(name="measured", payload=payload)(measured)


def test_a_sample_fits_its_type_and_the_arguments() -> None:
    for type in EVENTS:
        arguments = NEEDS.get(type.name, {})
        sample = make_sample(type, arguments)
        assert type.check_payload(sample) is None and sample[MARK] is True
        assert arguments.items() <= sample.items()
    sample = make_sample(declared(Measured), {"kind": "length"})
    best = {"low": 0, "high": 0}
    assert sample == {"kind": "length", "ranges": [], "best": best, "at": TEXT, MARK: True}
    narrow = {
        "type": "object",
        "properties": {
            "when": {"type": "string", "format": "date-time"},
            "word": {"type": "string", "maxLength": 4},
            "size": {"type": ["null", "integer"], "minimum": 3, "maximum": 5},
            "parts": {"type": "array", "items": {"enum": ["x"]}, "minItems": 2},
        },
        "additionalProperties": False,
    }
    fits = {"when": "2000-01-01T00:00:00Z", "word": TEXT[:4], "size": 3, "parts": ["x", "x"]}
    assert make_sample(declared(narrow), {}) == fits
    with pytest.raises(EventError, match="no test event fits the payload of measured"):
        make_sample(declared({"type": "object", "properties": {"a": {"pattern": "^x$", "type": "string"}}}), {})

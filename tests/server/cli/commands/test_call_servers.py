"""`toolgate call --url` at servers whose answers would control the terminal, or are none."""

import http.server
import json
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from toolgate.server.cli import main

CLEAR = "\x1b[2J\x9b2J\x07"  # clears a terminal, and rings its bell
CUT: dict[str, Any] = {"result": {}}  # an answer that breaks off
SHOWN = r"\x1b[2J\x9b2J\x07"


class FakeMcpServer(http.server.ThreadingHTTPServer):
    """A server that answers each method with the result or the error in `answers`; None is a 401."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), FakeMcpHandler)
        self.url = f"http://127.0.0.1:{self.server_port}/mcp"
        self.answers: dict[str, Any] = {}


class FakeMcpHandler(http.server.BaseHTTPRequestHandler):
    server: FakeMcpServer

    def do_POST(self) -> None:
        message = json.loads(self.rfile.read(int(self.headers["content-length"])))
        answer = self.server.answers.get(message["method"], {"result": {"capabilities": {}}})
        data = json.dumps({"jsonrpc": "2.0", "id": message.get("id"), **(answer or {})}).encode()
        self.send_response(401 if answer is None else 200)
        self.send_header("content-type", "text/plain" if answer is None else "application/json")
        data = f"no{CLEAR}".encode() if answer is None else data
        missing = 1 if answer is CUT else 0
        self.send_header("content-length", str(len(data) + missing))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_: object) -> None: ...


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[FakeMcpServer]:
    monkeypatch.setenv("HOME", str(tmp_path))
    with FakeMcpServer() as listening:
        threading.Thread(target=listening.serve_forever, args=(0.01,), daemon=True).start()
        yield listening
        listening.shutdown()


TOOL = {"name": "Look", "inputSchema": {}}


@pytest.mark.parametrize(
    ("method", "answer", "code", "said"),
    [
        ("server/discover", None, 1, "Not signed in. Run `toolgate login "),
        ("tools/list", {"error": {"code": -1, "message": f"a{CLEAR}"}}, 1, f"-1 a{SHOWN}"),
        ("tools/list", {"result": {"tools": [{**TOOL, "name": f"a{CLEAR}"}]}}, 2, f"tools are a{SHOWN}"),
        ("tools/call", {"error": {"code": -1, "message": f"b\n{CLEAR}"}}, 1, rf"-1 b\n{SHOWN}"),
    ],
)
def test_an_error_of_a_server_does_not_control_the_terminal(
    server: FakeMcpServer, capsys: pytest.CaptureFixture[str], method: str, answer: Any, code: int, said: str
) -> None:
    server.answers = {"tools/list": {"result": {"tools": [TOOL]}}, method: answer}
    assert main.run(["call", "Look", "--url", server.url]) == code
    told = capsys.readouterr().err
    assert said in told and all(line.isprintable() for line in told.split("\n"))


@pytest.mark.parametrize(
    ("method", "answer", "said"),
    [
        ("tools/list", {"result": {}}, "answer to tools/list is not valid: Expected `array`, got `null`"),
        ("tools/list", {"result": {"tools": [{"name": 7}]}}, "is not valid: Expected `str`, got `int`"),
        ("tools/list", {"result": [1]}, "neither a result nor an error"),
        ("tools/list", {"error": "no"}, "neither a result nor an error"),
        ("tools/list", {"id": [1]}, "the response ended before it was complete"),
        ("tools/call", {"result": {"content": 1}}, "answer to tools/call is not valid"),
        ("tools/call", {"result": {"content": [{"type": "image", "data": "a"}]}}, "is not valid base64"),
        ("tools/call", {"result": {"content": [{"type": "image", "mimeType": "image/png"}]}}, "is not valid base64"),
    ],
)
def test_an_answer_that_is_none_is_named(
    server: FakeMcpServer, capfd: pytest.CaptureFixture[str], tmp_path: Path, method: str, answer: Any, said: str
) -> None:
    server.answers = {"tools/list": {"result": {"tools": [TOOL]}}, method: answer}
    assert main.run(["call", "Look", "--url", server.url, "--output", str(tmp_path / "image")]) == 1
    told = capfd.readouterr().err
    assert said in told and "Traceback" not in told
    assert not (tmp_path / "image").exists()


def test_a_server_that_breaks_off_may_still_run_the_command(
    server: FakeMcpServer, capsys: pytest.CaptureFixture[str]
) -> None:
    server.answers |= {"tools/list": {"result": {"tools": [TOOL]}}, "tools/call": CUT}
    assert main.run(["call", "--url", server.url, "Look"]) == 1
    shown = capsys.readouterr().err
    assert f"{server.url}: the connection broke before the answer came\n" in shown
    assert f"What the call ran may go on. To see that: toolgate call --url {server.url} ListBgTasks\n" in shown


def test_json_on_a_terminal_has_escapes_that_programs_read(
    server: FakeMcpServer, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    content = [{"type": "text", "text": f"Grüße{CLEAR}\u202e"}]
    server.answers = {"tools/list": {"result": {"tools": [TOOL]}}, "tools/call": {"result": {"content": content}}}
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    assert main.run(["call", "Look", "--json", "--url", server.url]) == 0
    told = capsys.readouterr().out
    assert json.loads(told) == {"content": content}
    assert "Grüße" in told and told.removesuffix("\n").isprintable()

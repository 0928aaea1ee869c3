"""`toolgate call` asks a server's questions at a terminal, and only there."""

import asyncio
import contextlib
import fcntl
import json
import os
import pty
import select
import signal
import subprocess
import termios
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.clients.raw_client import COMMAND, PATIENCE
from tests.clients.raw_http_client import site
from tests.conftest import PROBE
from toolgate.server.calls import terminal
from toolgate.server.calls.terminal import TerminalElicitation

PLUGIN = '''
"""Asks by a form with a field of each kind."""
from toolgate.tools import Context, tool

@tool
async def form(ctx: Context) -> str:
    "Ask."
    fields = {
        "name": {"type": "string", "title": "Name\\x1b[2J", "minLength": 2},
        "age": {"type": "integer", "description": "In years\\n[y/n] y", "default": 7},
        "sure": {"type": "boolean"},
        "color": {"type": "string", "enum": ["red", "green"], "enumNames": ["Red", "Green"]},
        "tags": {"type": "array", "items": {"type": "string", "enum": ["a", "b", "c"]}},
    }
    answer = await ctx.elicit("Who?\\u202e\\n[y/n] y", {"type": "object", "properties": fields, "required": ["name"]})
    return f"{answer.action} {dict(answer.content)}"
'''


class Called:
    """A run of `toolgate call` in its own session, with or without a terminal. `controlling`: the terminal is its
    /dev/tty, not its input."""

    def __init__(
        self, folder: Path, *words: str, terminal: bool = True, controlling: bool = False, term: str = "dumb"
    ) -> None:
        self.outer, inner = pty.openpty()
        mode = termios.tcgetattr(inner)
        mode[3] &= ~termios.ECHO
        termios.tcsetattr(inner, termios.TCSANOW, mode)
        self.seen = ""
        at_once = terminal and not controlling
        self.process = subprocess.Popen(
            [COMMAND, "call", *words],
            stdin=inner if at_once else subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=inner if at_once else subprocess.STDOUT,
            cwd=folder,
            env={"PATH": os.environ["PATH"], "HOME": str(folder), "TERM": term},
            start_new_session=True,
            preexec_fn=(lambda: fcntl.ioctl(inner, termios.TIOCSCTTY, 0)) if controlling else None,
        )
        os.close(inner)

    def until(self, words: str) -> str:
        """Return the terminal's text up to these words. Fails if they don't come."""
        end = time.monotonic() + PATIENCE
        while words not in self.seen:
            left = end - time.monotonic()
            assert left > 0 and select.select([self.outer], [], [], left)[0], f"no {words!r} in {self.seen!r}"
            with contextlib.suppress(OSError):
                self.seen += os.read(self.outer, 65_536).decode()
        told, _, self.seen = self.seen.partition(words)
        return told + words

    def type(self, line: str) -> None:
        os.write(self.outer, line.encode())

    def ended(self) -> tuple[int, str]:
        assert self.process.stdout is not None
        said = self.process.stdout.read().decode()
        return self.process.wait(PATIENCE), said

    def close(self) -> None:
        assert self.process.stdout is not None
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait(PATIENCE)
        self.process.stdout.close()
        os.close(self.outer)


@contextlib.contextmanager
def called(folder: Path, *words: str, **how: Any) -> Iterator[Called]:
    with contextlib.closing(Called(folder, *words, **how)) as held:
        yield held


def test_a_form_is_filled_in_line_by_line(tmp_path: Path) -> None:
    (tmp_path / "own").mkdir()
    (tmp_path / "own" / "form.py").write_text(PLUGIN)
    with called(tmp_path, "form", "-p", str(tmp_path / "own")) as at:
        head = at.until("Name\\u001b[2J: ")
        assert "  | Who?\\u202e\r\n  | [y/n] y\r\n" in head and "\x1b" not in head
        at.type("\n")
        at.until("an answer is required")
        at.type("A\n")
        at.until("at least 2")
        at.type("Ada\n")
        assert "  | In years\r\n  | [y/n] y\r\n" in at.until("age (a whole number, default 7): ")
        at.type("old\n")
        at.until("whole number\r\n")
        at.type("\n")
        at.until("sure (y/n): ")
        at.type("\n")
        assert "1. Red (red)\r\n  2. Green (green)" in at.until("color (a number): ")
        at.type("2\n")
        at.until("tags (numbers, with commas between them): ")
        at.type("1, c\n")
        assert at.ended() == (0, "accept {'name': 'Ada', 'age': 7, 'color': 'green', 'tags': ['a', 'c']}\n")


def test_a_choice_is_not_asked_for_again_in_own_words(tmp_path: Path) -> None:
    asked = {"questions": [{"question": "Which?", "options": ["red", "green"]}]}
    words = ("AskUserQuestion", f"questions_json={json.dumps(asked)}")
    for lines in (("2\n",), ("\n", "green\n")):  # the second in own words
        with called(tmp_path, *words) as at:
            for prompt, line in zip(("(a number): ", "Other (Which?): "), lines, strict=False):
                at.until(prompt)
                at.type(line)
            code, said = at.ended()
            assert code == 0 and json.loads(said)["answers"][0]["selected"] == "green"


def test_an_approval_is_a_yes_at_the_terminal_wherever_the_input_comes_from(tmp_path: Path) -> None:
    with called(tmp_path, "--approve", "Bash", "Bash", "command=echo hi", controlling=True) as at:
        assert '  | Run Bash with these arguments?\r\n  | \r\n  | command: "echo hi"' in at.until("[y/n] ")
        at.type("perhaps\n")
        at.until("[y/n] ")
        at.type("y\n")
        assert at.ended() == (0, "hi\n")


def test_a_no_and_an_end_of_the_input_are_told_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    outer, inner = pty.openpty()
    monkeypatch.setattr(terminal, "TTY", os.ttyname(inner))
    asked = {"message": "really?", "requestedSchema": {"type": "object", "properties": {"x": {"type": "string"}}}}

    async def body() -> list[Any]:
        person = TerminalElicitation()
        os.write(outer, b"no\n")
        answers = [await person.answer("elicitation/create", {"message": "really?"})]
        for words in (b"\x04", b"\n", b"a" * 3_000 + b"\n"):
            os.write(outer, words)
            answers.append(await person.answer("elicitation/create", asked))
        for method, params in (("roots/list", {}), ("elicitation/create", {"mode": "url", "url": "https://x.example"})):
            with pytest.raises(LookupError):
                await person.answer(method, params)
        assert not person.has_declined
        return answers

    assert asyncio.run(asyncio.wait_for(body(), PATIENCE)) == [
        {"action": "decline"},
        {"action": "cancel"},
        {"action": "accept", "content": {}},
        {"action": "accept", "content": {"x": "a" * 3_000}},
    ]
    os.close(outer)
    os.close(inner)


def test_a_server_at_a_url_asks_through_its_results(tmp_path: Path) -> None:
    with (
        site(tmp_path, *PROBE, "--approve", "ask") as listening,
        called(tmp_path, "ask", "--url", f"{listening.url}/mcp") as at,
    ):
        at.until("[y/n] ")
        at.type("yes\n")
        for name in ("Ada", "Bob"):
            at.until("name: ")
            at.type(f"{name}\n")
        code, said = at.ended()
        assert code == 0 and said.startswith("accept {'name': 'Ada'} accept {'name': 'Bob'}")


def test_a_question_that_is_called_off_and_one_without_a_terminal_end(tmp_path: Path) -> None:
    with called(tmp_path, "--approve", "Bash", "--hold", "1", "Bash", "command=touch x") as at:
        at.until("[y/n] ")
        at.until("no longer waits for this answer")
        code, said = at.ended()
        assert code == 1 and "no answer within" in said
    with called(tmp_path, "--approve", "Bash", "Bash", "command=touch x", terminal=False) as at:
        code, said = at.ended()
        assert code == 1 and "there is no terminal to answer it: declined" in said and "the command did not run" in said
    with called(tmp_path, "--approve", "Bash", "Bash", "command=touch x") as at:
        at.until("[y/n] ")
        at.process.send_signal(signal.SIGINT)  # Ctrl-C
        assert at.ended()[0] == 1
    assert not list(tmp_path.rglob("x"))


def test_a_call_that_takes_long_shows_its_seconds_and_its_newest_line(tmp_path: Path) -> None:
    with called(tmp_path, "Bash", "command=echo begun; while ! test -e go; do sleep 0.1; done", term="xterm") as at:
        at.until("Bash … ")
        at.until("begun")
        (tmp_path / "go").touch()
        assert at.ended() == (0, "begun\n")

"""The banner of an HTTP server on a terminal, and the colours of a terminal."""

import contextlib
import io
import os
import pty
import signal
import subprocess
from pathlib import Path

import pytest

from tests.clients.raw_client import COMMAND, PATIENCE
from toolgate.server.cli.terminal.banner import choose_banner, format_banner
from toolgate.server.cli.terminal.style import Style, choose_style
from toolgate.server.config import load

PLAIN = Style(is_coloured=False)
GITHUB = {"login": ["github", "password"], "allow_users": ["github:17", "x\x1b[2J"]}


def test_a_person_who_starts_a_server_is_told_where_it_is_and_how_it_ends(tmp_path: Path) -> None:
    outer, inner = pty.openpty()
    words = [COMMAND, "-t", "-s", "--sandbox", "none", "--port", "0", "--state", str(tmp_path / "state")]
    own = {"PATH": os.environ["PATH"], "HOME": str(tmp_path), "TERM": "xterm", "NO_COLOR": "1"}
    with subprocess.Popen(words, cwd=tmp_path, env=own, stdin=subprocess.DEVNULL, stderr=inner) as server:
        os.close(inner)
        seen = ""
        while "Ctrl-C" not in seen:
            seen += os.read(outer, 65_536).decode()
        server.send_signal(signal.SIGINT)
        assert server.wait(PATIENCE) == 0
    with contextlib.suppress(OSError):  # the end, on Linux
        while data := os.read(outer, 65_536):
            seen += data.decode()
    os.close(outer)
    assert seen.endswith("\r\ntoolgate has ended.\r\n")
    for words_of_it in (
        "/mcp",
        "/sse",
        "/login#code=",
        "people with an account",
        "no sandbox",
        str(tmp_path / "state"),
    ):
        assert words_of_it in seen, seen
    assert "INFO" not in seen and "\x1b" not in seen
    assert seen.count("there is no account") == 0 and "WARNING toolgate.sandbox" in seen


@pytest.mark.parametrize("options", [{}, {"log_format": "json"}, {"verbose": "true"}])
def test_logs_stay_logs_without_a_terminal_and_where_they_are_asked_for(options: dict[str, str]) -> None:
    assert choose_banner(load.load({"http": "true", **options}, {})) is None  # a test's standard error is no terminal


def test_the_banner_says_who_may_sign_in_without_escape_sequences() -> None:
    told = format_banner(load.load({"http": "true", **GITHUB}, {}), "uid", "https://t.example", "", PLAIN)
    assert "through GitHub: github:17, x\\x1b[2J; people with an account" in told
    assert "https://t.example/mcp" in told and "begin here" not in told and "\x1b" not in told
    issuer = format_banner(load.load({"http": "true", "auth": "https://id.example"}, {}), "uid", "http://l", "", PLAIN)
    assert "people who sign in at https://id.example" in issuer


@pytest.mark.parametrize(
    ("environment", "is_coloured"),
    [
        ({"TERM": "xterm"}, False),
        ({"FORCE_COLOR": "1"}, True),
        ({"FORCE_COLOR": "0"}, False),
        ({"FORCE_COLOR": "1", "NO_COLOR": "1"}, False),
    ],
)
def test_a_pipe_has_no_colour_unless_it_is_forced(environment: dict[str, str], is_coloured: bool) -> None:
    style = choose_style(io.StringIO(), environment)
    assert style.is_coloured is is_coloured and style.width is None
    assert (style.paint("1", "word") == "word") is not is_coloured


def test_text_is_wrapped_between_words_and_below_itself() -> None:
    style = Style(is_coloured=False, width=44)
    assert style.wrap("one two three four five six seven eight nine ten", 4) == (
        "one two three four five six seven eight\n    nine ten"
    )
    assert PLAIN.wrap("word " * 50, 4) == "word " * 50

"""Progress of long work is shown on a terminal, and nowhere else."""

import asyncio
import io
import os
import pty
import select
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import TextIO

import pytest

from toolgate.server.base import progress
from toolgate.server.cli.doctor import main
from toolgate.server.config import load
from toolgate.server.features.telemetry.audit import reader
from toolgate.server.features.telemetry.commands import audit

SEEN = 65_536
END = "\x04"  # nothing that is shown
PATIENCE = 10.0
TERMINAL = {"TERM": "xterm", "PATH": os.environ["PATH"]}


class Terminal:
    """A pseudo-terminal: `stream` for the program, and what a person would see."""

    def __init__(self, stream: TextIO, end: int) -> None:
        self.stream = stream
        self._end = end

    def seen(self) -> str:
        """Return everything written so far; the system delivers it with a delay."""
        self.stream.write(END)
        self.stream.flush()
        told = ""
        while not told.endswith(END):
            assert select.select([self._end], [], [], PATIENCE)[0], told
            told += os.read(self._end, SEEN).decode()
        return told.removesuffix(END)


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> Iterator[Terminal]:
    """Put a pseudo-terminal in the place of standard error."""
    end, slave = pty.openpty()
    stream: TextIO = open(slave, "w", buffering=1)  # noqa: SIM115
    monkeypatch.setattr(progress, "sys", SimpleNamespace(stderr=stream))  # pytest puts its own into sys for each phase
    yield Terminal(stream, end)
    stream.close()
    os.close(end)


def left(text: str) -> str:
    """Return the final text of the line: a carriage return goes back to its beginning."""
    line: list[str] = []
    for piece in text.split("\r"):
        line[: len(piece)] = piece
    return "".join(line)


def test_a_terminal_shows_what_is_being_done_and_nothing_of_it_stays(terminal: Terminal) -> None:
    shown = progress.terminal_progress(TERMINAL, lambda: 60.0)
    with shown.show("reading the record") as at:
        assert left(terminal.seen()) == "reading the record …"
        at(3_000, 10_000)
        assert left(terminal.seen()).rstrip() == "reading the record … 3,000 of 10,000"
        at(3_001, 10_000)  # too soon to be read
        with shown.show("a\x1b[31mpart\nof it"):
            told = terminal.seen()
            assert "a [31mpart of it …" in told and "\x1b" not in told and "3,001" not in told
        told = terminal.seen()
        assert left(told).rstrip() == "reading the record …"
    assert left(told + terminal.seen()).strip() == ""


def test_output_printed_meanwhile_finds_an_empty_line(terminal: Terminal) -> None:
    shown = progress.terminal_progress({**TERMINAL, "NO_COLOR": "1"})
    with shown.show("waiting"):
        shown.clear()
        assert left(terminal.seen()).strip() == ""
        shown.clear()
        print("done", file=terminal.stream)
        assert terminal.seen().strip() == "done"


def test_a_long_line_never_reaches_the_next(terminal: Terminal) -> None:
    columns = os.get_terminal_size(terminal.stream.fileno()).columns or progress.NARROW
    with progress.terminal_progress(TERMINAL).show("x" * 500):
        assert len(left(terminal.seen())) == columns - 1


@pytest.mark.parametrize("environment", [{"TERM": "dumb"}, {}])
def test_a_terminal_that_can_not_go_back_is_left_alone(terminal: Terminal, environment: dict[str, str]) -> None:
    with progress.terminal_progress(environment).show("work"):
        print("nothing else", file=terminal.stream)
    assert terminal.seen().strip() == "nothing else"


def test_a_stream_that_is_no_terminal_gets_no_byte_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    for stream in (io.StringIO(), None):
        monkeypatch.setattr(progress, "sys", SimpleNamespace(stderr=stream))
        shown = progress.terminal_progress(TERMINAL)
        with shown.show("work") as at:
            at(1, 2)
            shown.clear()
        assert stream is None or stream.getvalue() == ""


def test_work_goes_on_where_the_terminal_goes(terminal: Terminal) -> None:
    shown = progress.terminal_progress(TERMINAL)
    with shown.show("work") as at:
        terminal.stream.close()
        at(1, 2)


def test_doctor_says_what_it_looks_at_on_standard_error_alone(
    terminal: Terminal, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(main, "MACHINE_CHECKS", {name: main.MACHINE_CHECKS[name] for name in ("python", "clock")})
    monkeypatch.setattr(main, "list_parts", lambda _: [])  # features' checks come after others of the machine
    assert asyncio.run(main.check(load.load({}, TERMINAL), json=False)) == 0
    told = terminal.seen()
    assert told.index("checking python …") < told.index("checking clock …") and left(told).strip() == ""
    assert "checking" not in capsys.readouterr().out


def test_verifying_the_record_says_how_far_it_is(
    terminal: Terminal, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "audit").mkdir()
    (tmp_path / "keys").mkdir()
    (tmp_path / "keys" / "audit").write_bytes(bytes(32))
    (tmp_path / "audit" / "audit.jsonl").write_bytes(b"{}\n" * 20)
    monkeypatch.setattr(reader, "PROGRESS_EVERY", 10)
    assert audit.verify(load.load({}, {**TERMINAL, "TOOLGATE_STATE": str(tmp_path)})) == 1
    assert "reading bytes of the record … 30 of 60" in terminal.seen()
    assert "BROKEN" in capsys.readouterr().out

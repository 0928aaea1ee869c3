"""Show the current step of long work on one line of a terminal, and erase the line afterwards.

The line goes to standard error, and only to a terminal: never to a file, a pipe or the protocol. It uses a carriage
return and no other control code or colour, so NO_COLOR does not apply.
"""

import os
import sys
import time
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from typing import TextIO

from toolgate.server.base.text import to_line

PAUSE = 0.1  # seconds between two updates: people read no faster
NARROW = 80  # columns, if the terminal does not say

At = Callable[[int, int], None]  # done, total (0 if not known)


class TerminalProgress:
    """One line on `stream`; with None nothing is shown. `now` returns seconds on a clock that never goes back."""

    def __init__(self, stream: TextIO | None, now: Callable[[], float] = time.monotonic) -> None:
        self._stream = stream
        self._now = now
        self._shown: list[str] = []  # innermost last
        self._width = 0  # of the text on the line
        self._last = 0.0

    @contextmanager
    def show(self, what: str) -> Generator[At]:
        """Show `what` while the context lasts."""
        self._shown.append(what)
        self._show(what)
        try:
            yield self._count
        finally:
            self._shown.pop()
            self.clear()
            if self._shown:
                self._show(self._shown[-1])

    @property
    def is_shown(self) -> bool:
        return self._stream is not None

    def update(self, text: str) -> None:
        """Show another text for the present step."""
        self._show(text, more="")

    def clear(self) -> None:
        """Erase the line, so that other output can be printed."""
        if self._stream is not None and self._width:
            self._write(f"\r{' ' * self._width}\r")
            self._width = 0

    def _count(self, done: int, of: int) -> None:
        now = self._now()
        if self._shown and now - self._last >= PAUSE:
            self._last = now
            self._show(f"{self._shown[-1]} … {done:,}{f' of {of:,}' if of else ''}", more="")

    def _show(self, text: str, more: str = " …") -> None:
        if self._stream is None:
            return
        line = to_line(text + more, _columns(self._stream) - 1)
        # the cursor goes back to the beginning: other output then overwrites this line
        self._write(f"\r{line:{self._width}}\r")
        self._width = len(line)

    def _write(self, text: str) -> None:
        assert self._stream is not None
        try:
            self._stream.write(text)
            self._stream.flush()
        except (OSError, ValueError):  # the terminal is gone; the work continues
            self._stream = None


def terminal_progress(environment: Mapping[str, str], now: Callable[[], float] = time.monotonic) -> TerminalProgress:
    """Return progress on standard error, shown only on a terminal that supports a carriage return."""
    stream = sys.stderr
    try:
        is_shown = stream is not None and stream.isatty() and environment.get("TERM", "dumb") != "dumb"
    except ValueError:  # standard error is closed
        is_shown = False
    return TerminalProgress(stream if is_shown else None, now)


def _columns(stream: TextIO) -> int:
    try:
        return os.get_terminal_size(stream.fileno()).columns or NARROW
    except (OSError, ValueError):
        return NARROW

"""Show what long work is doing, on one line of a terminal that is taken away again.

It goes to standard error, and only where that is a terminal: no file, no pipe and no protocol ever has a byte of it. It
takes no control code but a carriage return, and no colour, so that NO_COLOR has nothing to forbid.
"""

import os
import sys
import time
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from typing import TextIO

from toolgate.server.text import to_line

PAUSE = 0.1  # seconds between two numbers: people read no faster
NARROW = 80  # columns, where a terminal doesn't say

At = Callable[[int, int], None]  # how many are done, of how many; 0 where that is not known


class TerminalProgress:
    """One line of `stream`; with None, nothing is shown."""

    def __init__(self, stream: TextIO | None) -> None:
        self._stream = stream
        self._shown: list[str] = []  # the innermost last
        self._width = 0  # of what stands there
        self._last = 0.0

    @contextmanager
    def show(self, what: str) -> Generator[At]:
        """Say that `what` is being done, as long as it is."""
        self._shown.append(what)
        self._show(what)
        try:
            yield self._count
        finally:
            self._shown.pop()
            self.clear()
            if self._shown:
                self._show(self._shown[-1])

    def clear(self) -> None:
        """Make room for something else that is printed."""
        if self._stream is not None and self._width:
            self._write(f"\r{' ' * self._width}\r")
            self._width = 0

    def _count(self, done: int, of: int) -> None:
        now = time.monotonic()
        if self._shown and now - self._last >= PAUSE:
            self._last = now
            self._show(f"{self._shown[-1]} … {done:,}{f' of {of:,}' if of else ''}", more="")

    def _show(self, text: str, more: str = " …") -> None:
        if self._stream is None:
            return
        line = to_line(text + more, _columns(self._stream) - 1)
        # back to the beginning: what a log or a child prints meanwhile takes this line's place
        self._write(f"\r{line:{self._width}}\r")
        self._width = len(line)

    def _write(self, text: str) -> None:
        assert self._stream is not None
        try:
            self._stream.write(text)
            self._stream.flush()
        except (OSError, ValueError):  # the terminal is gone: the work goes on
            self._stream = None


def terminal_progress(environment: Mapping[str, str]) -> TerminalProgress:
    """Return progress on standard error, shown where that is a terminal that can go back to the line's beginning."""
    stream = sys.stderr
    try:
        is_shown = stream is not None and stream.isatty() and environment.get("TERM", "dumb") != "dumb"
    except ValueError:  # it is closed
        is_shown = False
    return TerminalProgress(stream if is_shown else None)


def _columns(stream: TextIO) -> int:
    try:
        return os.get_terminal_size(stream.fileno()).columns or NARROW
    except (OSError, ValueError):
        return NARROW

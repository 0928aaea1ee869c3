"""A terminal that a program runs on, and what it shows there."""

import contextlib
import fcntl
import os
import pty
import struct
import subprocess
import termios
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path

from tests.clients.raw_client import PATIENCE


class Terminal:
    """A program on a terminal of its own. `size`: rows and columns."""

    def __init__(
        self, words: Sequence[str], folder: Path, environment: Mapping[str, str], size: tuple[int, int]
    ) -> None:
        self._said = bytearray()
        self._ours, its = pty.openpty()
        fcntl.ioctl(its, termios.TIOCSWINSZ, struct.pack("HHHH", *size, 0, 0))
        self._process = subprocess.Popen(
            words,
            stdin=its,
            stdout=its,
            stderr=its,
            cwd=folder,
            env={**environment, "TERM": "xterm-256color"},
            start_new_session=True,
        )
        os.close(its)
        self._reader = threading.Thread(target=self._read, daemon=True)  # a full terminal blocks the program
        self._reader.start()

    @property
    def said(self) -> str:
        """Return all that the program has written."""
        return self._said.decode(errors="replace")

    def type(self, text: str) -> None:
        os.write(self._ours, text.encode())

    def is_over(self) -> bool:
        return self._process.poll() is not None

    def end(self) -> int | None:
        """End the program, and return its exit code if it had ended by itself."""
        code = self._process.poll()
        self._process.kill()
        self._process.wait(PATIENCE)
        self._reader.join(PATIENCE)
        os.close(self._ours)
        return code

    def _read(self) -> None:
        with contextlib.suppress(OSError):  # the other side is closed
            while read := os.read(self._ours, 1 << 16):
                self._said.extend(read)

"""One command's process tree, as the server sees it. Knows nothing of the zygote, of workspaces or of tools.

The other end of its control socket is a supervisor: the head of `supervisor.py` describes what is said.
"""

import asyncio
import contextlib
import logging
import os
import socket
import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

CHUNK = 2**16  # what a pipe holds unless told otherwise
DRAIN = 2**20  # the most a pipe can hold unless the administrator says otherwise
MAX_REQUEST = 8 * 2**20  # four times what Linux takes in one exec: anything larger only costs memory
START_WITHIN = 10.0  # seconds; it takes milliseconds, and a stopped supervisor must not hang a call

log = logging.getLogger(__name__)


class NotStarted(Exception):
    """Nothing runs; the text says why."""


@dataclass(frozen=True, slots=True)
class Launch:
    """What to run: `fallback` is the directory to run in when `cwd` can't be entered."""

    argv: Sequence[str]
    cwd: Path
    fallback: Path
    environment: Mapping[str, str]

    def encoded(self) -> bytes:
        """As a supervisor reads it. Raises NotStarted for what no system could run."""
        fields = [str(self.cwd), str(self.fallback), str(len(self.argv)), *self.argv]
        fields += [f"{name}={value}" for name, value in self.environment.items() if name]
        encoded = [os.fsencode(field) for field in fields]
        if any(b"\0" in field for field in encoded):
            raise NotStarted("a NUL character in the command, a directory or the environment")
        request = b"\0".join(encoded)
        if len(request) > MAX_REQUEST:
            raise NotStarted(f"command and environment are {len(request):,} bytes, over {MAX_REQUEST:,}")
        return struct.pack("!I", len(request)) + request


class Process:
    """One command's process tree, as its supervisor tells of it, and the reader of its output.

    `ended`: the command's exit code, 128 + N for signal N; None when it can't be known. `gone`: nothing of the tree is
    left; False when contact was lost instead. `left`: processes the command left running. `moved`: it runs in the
    fallback directory.
    """

    def __init__(self, control: socket.socket, output: int, sink: Callable[[bytes], None]) -> None:
        self._loop = asyncio.get_running_loop()
        self._control = control
        self._output: int | None = output
        self._sink = sink
        self._heard = b""
        self._started: asyncio.Future[str | None] = self._loop.create_future()
        self.ended: asyncio.Future[int | None] = self._loop.create_future()
        self.gone: asyncio.Future[bool] = self._loop.create_future()
        self.hatched = False
        self.moved = False
        self.left = 0
        self._loop.add_reader(output, self._on_output)
        self._loop.add_reader(control, self._on_control)

    async def begin(self, request: bytes) -> None:
        """Have the command started. Raises NotStarted; cancelled, it ends what may have started."""
        try:
            async with asyncio.timeout(START_WITHIN):
                with contextlib.suppress(BrokenPipeError, ConnectionResetError):
                    await self._loop.sock_sendall(self._control, request)
                failure = await self._started
        except TimeoutError:
            self.abandon()
            raise NotStarted(f"its supervisor did not answer within {START_WITHIN:g} s") from None
        except BaseException:
            self.abandon()
            raise
        if failure is not None:
            self.abandon()
            raise NotStarted(failure)

    def terminate(self, grace: float) -> None:
        """SIGTERM to the whole tree, SIGKILL after `grace` seconds to what is left. A second call may shorten it."""
        if not self.gone.done():
            with contextlib.suppress(OSError):  # a lost supervisor is noticed by its reader
                self._control.send(f"terminate {grace:.3f}\n".encode())

    def abandon(self) -> None:
        """Let go: the supervisor sees its socket close and kills what is left at once."""
        if not self.gone.done():
            self._settle(gone=False)

    def _on_output(self) -> None:
        self._read(CHUNK)

    def _read(self, limit: int) -> int:
        """Pass on what is there, at most `limit` bytes; 0 when there is nothing now, or never will be."""
        if self._output is None:
            return 0
        try:
            data = os.read(self._output, limit)
        except BlockingIOError:
            return 0
        if data:
            self._sink(data)
        else:
            self._close_output()
        return len(data)

    def _drain(self) -> None:
        """Take what is in the pipe, and don't wait for its end: a daemon may hold that for ever."""
        left = DRAIN
        while left > 0 and (size := self._read(CHUNK)):
            left -= size

    def _close_output(self) -> None:
        if self._output is not None:
            self._loop.remove_reader(self._output)
            os.close(self._output)
            self._output = None

    def _on_control(self) -> None:
        try:
            said = self._control.recv(4096)
        except BlockingIOError:
            return
        except OSError:
            said = b""
        *lines, self._heard = (self._heard + said).split(b"\n")
        for line in lines:
            self._hear(os.fsdecode(line))
        if not said:
            self.abandon()

    def _hear(self, line: str) -> None:
        word, _, rest = line.partition(" ")
        match word:
            case "here":
                self.hatched = True
            case "started":
                self.moved = rest == "1"
                self._started.set_result(None)
            case "failed":
                self._started.set_result(rest)
            case "exited":
                code, self.left = map(int, rest.split())
                self._drain()
                self.ended.set_result(code if code >= 0 else 128 - code)
            case "gone":
                self._settle(gone=True)
            case _:
                log.error("a supervisor said %r", line)

    def _settle(self, gone: bool) -> None:
        """The last that will ever be known."""
        self._drain()
        self._close_output()
        self._loop.remove_reader(self._control)
        self._control.close()
        if not self._started.done():
            self._started.set_result("its supervisor died")
        if not self.ended.done():
            self.ended.set_result(None)
        self.gone.set_result(gone)

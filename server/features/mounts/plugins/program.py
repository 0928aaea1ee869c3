"""Start the process of a plugin, and end it with all that it started.

Its standard input and output are one socket. Its standard error is the server's, which is the log.
"""

import asyncio
import contextlib
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path

from toolgate.tools.workspace.processes import process_tree
from toolgate.tools.workspace.workspace import GRACE, ProgramEnd, ProgramInputError

COMMAND = (sys.executable, "-P", "-X", "utf8", "-m", "toolgate.server.features.mounts.plugins.worker")
GONE_WITHIN = 2.0  # seconds for its last output after its end: something else may hold the socket
LATE = 0.5  # seconds for the reaper to end the tree; after that it is stopped, and the server does it
CHUNK = 2**16  # bytes read ahead: the share of a flooding process in each turn of the loop


class PluginProgram:
    """A ProgramStream to a plugin's process. `exited` is done when it has ended, and `status` says how then."""

    def __init__(
        self,
        popen: "subprocess.Popen[bytes]",
        line: socket.socket,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
    ) -> None:
        loop = asyncio.get_running_loop()
        self.status = ""
        self.exited: asyncio.Future[None] = loop.create_future()
        self._popen = popen
        self._line = line  # for the reaper: only its end means something
        self._reader = reader
        self._writer = writer
        self._code = 0
        threading.Thread(target=self._wait_exit, args=(loop,), daemon=True).start()

    @property
    def pid(self) -> int:
        return self._popen.pid

    async def read(self) -> bytes:
        """Return output, and let others run first: a process may flood. Its end ends the process."""
        await asyncio.sleep(0)
        try:
            output = await self._reader.read(CHUNK)
        except ConnectionError:
            output = b""
        if not output:
            self.end()
            self._writer.close()
        return output

    async def write(self, data: bytes) -> None:
        if self._writer.is_closing():
            raise ProgramInputError("the plugin's process has ended")
        try:
            self._writer.write(data)
            await self._writer.drain()  # a process that does not read gets no more
        except ConnectionError:
            raise ProgramInputError("the plugin's process has ended") from None

    async def close_input(self) -> None:
        """End the process: its input is its output, too."""
        self.end()

    async def stderr_tail(self) -> str:
        return ""  # it is in the log

    async def wait(self) -> ProgramEnd:
        await asyncio.shield(self.exited)
        return ProgramEnd(self._code if self._code >= 0 else 128 - self._code)

    async def close(self, grace: float = GRACE) -> None:
        """End the process at once."""
        self.end()

    def end(self) -> None:
        """Let the reaper end the process and its children."""
        if self._line.fileno() >= 0:
            self._line.close()
            self._send_signal(signal.SIGTERM)  # ends a reaper that has not started yet; later it ignores the signal
            self._send_signal(signal.SIGCONT)
            asyncio.get_running_loop().call_later(LATE, self._kill_tree)

    def _kill_tree(self) -> None:
        """Do the work of a stopped reaper."""
        if not self.exited.done():
            process_tree.kill(lambda: process_tree.top_processes(self.pid))
            self._send_signal(signal.SIGCONT)

    def _send_signal(self, number: signal.Signals) -> None:
        """Signal the process. Its id stays valid until `_note_exit` has waited for it."""
        if not self.exited.done():
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(self.pid, number)

    def _wait_exit(self, loop: asyncio.AbstractEventLoop) -> None:
        """Tell the loop, from a thread, that the process has ended; `_note_exit` waits for it."""
        if hasattr(os, "waitid"):
            os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOWAIT)
        else:  # macOS: the id might be reused before it is used
            self._popen.wait()
        with contextlib.suppress(RuntimeError):  # the loop is closed
            loop.call_soon_threadsafe(self._note_exit)

    def _note_exit(self) -> None:
        self._line.close()
        self._code = code = self._popen.wait()
        self.status = f"exit status {code}" if code >= 0 else f"signal {_signal_name(-code)}"
        self.exited.set_result(None)
        asyncio.get_running_loop().call_later(GONE_WITHIN, self._writer.close)


async def start_program(file: Path, environment: Mapping[str, str], log_arguments: Sequence[str]) -> PluginProgram:
    """Start a process for a plugin. Raises OSError."""
    stream, its_stream = socket.socketpair()
    line, its_line = socket.socketpair()
    with its_stream, its_line, contextlib.ExitStack() as unused:
        unused.callback(stream.close)
        unused.callback(line.close)
        popen = _spawn(its_stream.fileno(), its_line.fileno(), [str(file), *log_arguments], environment)
        unused.callback(threading.Thread(target=popen.wait, daemon=True).start)
        reader, writer = await asyncio.open_unix_connection(sock=stream, limit=CHUNK)
        unused.pop_all()
    return PluginProgram(popen, line, reader, writer)


def _spawn(stream: int, line: int, words: Sequence[str], environment: Mapping[str, str]) -> "subprocess.Popen[bytes]":
    return subprocess.Popen(
        [*COMMAND, str(line), *words],
        stdin=stream,
        stdout=stream,
        pass_fds=[line],
        env=environment,
        start_new_session=True,  # a Ctrl-C in the terminal is meant for the server
    )


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return str(number)

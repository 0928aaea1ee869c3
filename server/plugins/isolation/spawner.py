"""Start the processes of plugins: through a fork server on Linux, each by itself elsewhere."""

import asyncio
import contextlib
import errno
import logging
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec

log = logging.getLogger("toolgate.plugins")

MODULE = "toolgate.server.plugins.isolation"
PYTHON = (sys.executable, "-P", "-X", "utf8", "-m")
PADDING = " " * 500  # room for a plugin's own command line
ANSWER_WITHIN = 20.0  # seconds: the first fork waits for the imports
ATTEMPTS = 2  # a fork server that was killed is replaced, once


class ForkError(Exception):
    """The fork server did not fork."""


class SpawnedProcess(msgspec.Struct, frozen=True, eq=False):
    """A plugin's process, a child of this one: the socket to it, and the socket whose end its reaper waits for."""

    pid: int
    channel: socket.socket
    line: socket.socket
    popen: "subprocess.Popen[bytes] | None" = None

    def wait(self) -> int:
        """Wait for its end, once. Return its exit code, or less than 0 for a signal."""
        if self.popen is not None:
            return self.popen.wait()
        return os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])

    def abandon(self) -> None:
        """End it, and wait for it in a thread."""
        self.channel.close()
        self.line.close()
        threading.Thread(target=self.wait, daemon=True).start()


class Spawner:
    """Starts all plugins' processes with one environment. The fork server starts with the first."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        self._environment = dict(environment)
        self._turn = asyncio.Lock()
        self._is_closed = False
        self._server: tuple[subprocess.Popen[bytes], socket.socket] | None = None

    async def spawn(self, file: Path, logged: Sequence[str]) -> SpawnedProcess:
        """Start a process for a plugin. Raises OSError."""
        work = asyncio.get_running_loop().create_task(self._spawn(file, logged))
        try:
            return await asyncio.shield(work)
        except asyncio.CancelledError:
            work.add_done_callback(_abandon)
            raise

    async def close(self) -> None:
        """End the fork server, and start no other."""
        self._is_closed = True
        if self._server is not None:
            self._server[0].kill()  # ends a wait for its answer
        async with self._turn:
            await self._end_server()

    async def _spawn(self, file: Path, logged: Sequence[str]) -> SpawnedProcess:
        channel, theirs = socket.socketpair()
        line, reaper = socket.socketpair()
        with theirs, reaper, contextlib.ExitStack() as unused:
            unused.callback(channel.close)
            unused.callback(line.close)
            spawned = await self._fork(file, logged, channel, line, (theirs, reaper))
            if spawned is None:
                popen = self._start("worker", (theirs, reaper), str(file), *logged)
                spawned = SpawnedProcess(popen.pid, channel, line, popen)
            unused.pop_all()
        return spawned

    async def _fork(
        self,
        file: Path,
        logged: Sequence[str],
        channel: socket.socket,
        line: socket.socket,
        given: Sequence[socket.socket],
    ) -> SpawnedProcess | None:
        """Have the fork server start the process. Return None where that is not possible."""
        from toolgate.server.plugins.isolation import fork_server  # start-up and memory: ctypes and the plugin API

        if not fork_server.is_supported():
            return None
        request = msgspec.msgpack.encode(fork_server.ForkRequest(str(file), list(logged)))
        async with self._turn:
            for _ in range(ATTEMPTS):
                if self._is_closed:
                    raise OSError(errno.ECANCELED, os.strerror(errno.ECANCELED))
                try:
                    pid = await self._ask(request, given)
                    if pid < 0:  # this kernel refuses it, or has no room: then starting a program fails, too
                        log.debug("a plugin's process can't be forked: %s", os.strerror(-pid))
                        return None
                    return SpawnedProcess(pid, channel, line)
                except (ForkError, TimeoutError, ConnectionError) as error:
                    if not self._is_closed:
                        log.warning("the process that forks plugins has failed: %s", error or type(error).__name__)
                    await self._end_server()
        return None

    async def _ask(self, request: bytes, given: Sequence[socket.socket]) -> int:
        """Return the id of the process that the fork server has started, or the number of its error, below 0.

        Raises ForkError, TimeoutError and OSError.
        """
        if self._server is None:
            ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            ours.setblocking(False)
            with theirs:
                try:
                    self._server = self._start("fork_server", (theirs,), PADDING), ours
                except OSError:
                    ours.close()
                    raise
        channel = self._server[1]
        socket.send_fds(channel, [request], [each.fileno() for each in given])
        async with asyncio.timeout(ANSWER_WITHIN):
            answer = await asyncio.get_running_loop().sock_recv(channel, 64)
        if not answer:
            raise ForkError("it has ended")
        return msgspec.msgpack.decode(answer, type=int)

    async def _end_server(self) -> None:
        server, self._server = self._server, None
        if server is not None:
            server[1].close()
            server[0].kill()
            await asyncio.to_thread(server[0].wait)

    def _start(self, module: str, given: Sequence[socket.socket], *words: str) -> "subprocess.Popen[bytes]":
        numbers = [each.fileno() for each in given]
        return subprocess.Popen(
            [*PYTHON, f"{MODULE}.{module}", *map(str, numbers), *words],
            stdin=subprocess.DEVNULL,
            stdout=2,  # the server's own belongs to the protocol
            pass_fds=numbers,
            env=self._environment,
            start_new_session=True,  # a Ctrl-C in the terminal is meant for the server
        )


def _abandon(work: "asyncio.Task[SpawnedProcess]") -> None:
    if not work.cancelled() and work.exception() is None:
        work.result().abandon()

"""Every process tree of one server, and the zygote they come from. Knows nothing of workspaces or tools."""

import asyncio
import contextlib
import logging
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from toolgate.tools.process import Launch, NotStarted, Process

SUPERVISOR = Path(__file__).with_name("supervisor.py")
END_WITHIN = 1.0  # seconds for a zygote to see that its socket is closed

log = logging.getLogger(__name__)


class Processes:
    """Every process tree of one server. Its zygote starts with the first command."""

    def __init__(self) -> None:
        self._zygote: Zygote | None = None

    async def start(self, launch: Launch, sink: Callable[[bytes], None]) -> Process:
        """Run; `sink` gets the output as it comes. Raises NotStarted."""
        request = launch.encoded()
        for _ in range(2):  # a zygote that was killed, or stopped, is replaced, once
            try:
                zygote = await self._living()
                control, output = await zygote.hatch()
            except OSError as error:
                raise NotStarted(f"no process or descriptor to be had for it: {error.strerror}") from error
            process = Process(control, output, sink)
            process.gone.add_done_callback(zygote.wake)  # it may have orphans to end
            try:
                await process.begin(request)
                return process
            except NotStarted as failure:
                if process.hatched:
                    raise
                log.warning("a new zygote is needed: %s", failure)
                await self._end(zygote)
        raise NotStarted("its supervisor did not start; see the server's log")

    async def close(self) -> None:
        """End the zygote. The trees end when their processes do: close those first."""
        if self._zygote is not None:
            await self._end(self._zygote)

    async def _living(self) -> "Zygote":
        if self._zygote is not None and not self._zygote.alive:
            await self._end(self._zygote)
        if self._zygote is None:
            self._zygote = Zygote()
        return self._zygote

    async def _end(self, zygote: "Zygote") -> None:
        """From now on another one serves; several starts may find out at once that it must."""
        if self._zygote is zygote:
            self._zygote = None
            await zygote.close()


class Zygote:
    """The small process that forks supervisors. Raises OSError when it can't be had."""

    def __init__(self) -> None:
        self._channel, theirs = socket.socketpair()
        self._channel.setblocking(False)
        with theirs, contextlib.ExitStack() as undo:
            undo.callback(self._channel.close)
            self._process = subprocess.Popen(
                [sys.executable, "-I", "-S", str(SUPERVISOR), str(theirs.fileno()), *_psutil()],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,  # the server's own carries the protocol
                cwd="/",
                env={},  # nothing of the server's for a command to find
                pass_fds=[theirs.fileno()],
                start_new_session=True,
            )
            undo.pop_all()

    @property
    def alive(self) -> bool:
        return self._process.poll() is None

    def wake(self, *_: object) -> None:
        """Have it go on, if a command has stopped it."""
        with contextlib.suppress(OSError):
            self._process.send_signal(signal.SIGCONT)

    async def hatch(self) -> tuple[socket.socket, int]:
        """A new supervisor's control socket, and the read end of its command's output. Raises OSError."""
        self.wake()
        control, theirs = socket.socketpair()
        with theirs:
            try:
                output, write_end = os.pipe()
            except OSError:
                control.close()
                raise
            try:
                await self._send([theirs.fileno(), write_end])
            except BaseException:
                control.close()
                os.close(output)
                raise
            finally:
                os.close(write_end)
        control.setblocking(False)
        os.set_blocking(output, False)
        return control, output

    async def _send(self, descriptors: list[int]) -> None:
        while True:
            try:
                socket.send_fds(self._channel, [b"+"], descriptors)
                return
            except BlockingIOError:  # hundreds are starting at once
                await _writable(self._channel)
            except (BrokenPipeError, ConnectionResetError):
                return  # a dead zygote: the control socket says so too

    async def close(self) -> None:
        """Have it end, and wait until it is gone."""
        self.wake()
        with self._channel, contextlib.suppress(OSError, TimeoutError, subprocess.TimeoutExpired):
            self._channel.shutdown(socket.SHUT_WR)
            async with asyncio.timeout(END_WITHIN):
                await asyncio.get_running_loop().sock_recv(self._channel, 1)  # it says nothing: this is its end
            self._process.wait(END_WITHIN)
        if self.alive:
            os.killpg(self._process.pid, signal.SIGKILL)  # with the supervisor that waits, not those that work
            self._process.wait()


async def _writable(channel: socket.socket) -> None:
    loop = asyncio.get_running_loop()
    ready = loop.create_future()
    loop.add_writer(channel, ready.set_result, None)
    ready.add_done_callback(lambda _: loop.remove_writer(channel))
    await ready


def _psutil() -> list[str]:
    """Where psutil lies, for systems whose /proc does not list children."""
    if Path("/proc/thread-self/children").exists():
        return []
    import importlib.util  # start-up: few systems come here

    spec = importlib.util.find_spec("psutil")
    return [str(Path(spec.origin).parent.parent)] if spec is not None and spec.origin else []

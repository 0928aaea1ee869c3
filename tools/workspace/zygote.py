"""Start commands through a zygote: one for a server without a sandbox, or one in each sandbox."""

import asyncio
import contextlib
import logging
import os
import resource
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

from toolgate.tools.rate_limiter import ByteRateLimiter
from toolgate.tools.workspace.process import OUTPUT_RATE, CommandStartError, Launch, Process

SUPERVISOR = Path(__file__).with_name("supervisor.py")
NEEDS_NEW = b"-"  # as in supervisor.py
END_WITHIN = 1.0  # seconds for a zygote to see that its socket is closed
ENTER_WITHIN = 15.0  # seconds for a sandbox to start; it takes some hundredths
MAX_REPORT = 4096  # bytes of a sandbox's error report
MAX_SHOWN = 300  # characters of it in an error text
IDLE = 600.0  # seconds after its last command that a sandbox ends, and its /tmp with it
MOST = 32  # of a server: each holds some 20 MiB, and its /tmp

log = logging.getLogger(__name__)


class Retirable(Protocol):
    def retire(self) -> None: ...


class IdleSandboxes:
    """The idle sandboxes. When there are too many, the longest idle one ends."""

    def __init__(self, most: int = MOST, seconds: float = IDLE) -> None:
        self._most = most
        self._seconds = seconds
        self._timers: dict[Retirable, asyncio.TimerHandle] = {}  # the longest idle first

    def add(self, sandbox: Retirable) -> None:
        """Add a sandbox in which no command runs any more."""
        self.remove(sandbox)
        self._timers[sandbox] = asyncio.get_running_loop().call_later(self._seconds, self._retire, sandbox)
        if len(self._timers) > self._most:
            self._retire(next(iter(self._timers)))

    def remove(self, sandbox: Retirable) -> None:
        """Remove a sandbox that runs a command again, or has ended."""
        timer = self._timers.pop(sandbox, None)
        if timer is not None:
            timer.cancel()

    def _retire(self, sandbox: Retirable) -> None:
        self.remove(sandbox)
        sandbox.retire()


class SandboxHandle(Protocol):
    """A sandbox (tools/sandbox/process.py)."""

    def spawn(self, channel: socket.socket, report: socket.socket) -> "subprocess.Popen[bytes]": ...
    def kill(self) -> None: ...


class CommandRunner:
    """Starts commands through one zygote, which starts with the first command.

    With a `sandbox` the zygote runs inside it. `on_enter` gets the proxy's listener of each new sandbox, and `on_exit`
    is called at its end. `idle_sandboxes` are those without commands.
    """

    def __init__(
        self,
        sandbox: SandboxHandle | None = None,
        on_enter: Callable[[socket.socket], None] | None = None,
        on_exit: Callable[[], None] | None = None,
        idle_sandboxes: IdleSandboxes | None = None,
    ) -> None:
        self._sandbox = sandbox
        self._on_enter = on_enter
        self._on_exit = on_exit
        self._idle_sandboxes = idle_sandboxes or IdleSandboxes()
        self._rate = ByteRateLimiter(lambda: OUTPUT_RATE)
        self._zygote: Zygote | None = None
        self._busy = 0  # commands that run or start
        self._ending: asyncio.Future[None] | None = None

    async def start(self, launch: Launch, sink: Callable[[bytes], bool], stdin: int | None = None) -> Process:
        """Start a command; `sink` gets its output and returns whether it was kept. `stdin` is the descriptor of its
        input; None: empty. Raises CommandStartError."""
        request = launch.encode()
        self._busy += 1
        self._idle_sandboxes.remove(self)
        try:
            process = await self._start_process(launch.supervisor_key, request, sink, stdin)
        except BaseException:
            self._on_gone()
            raise
        if process.gone.done():  # now: the next command may need to know that none runs
            self._on_gone()
        else:
            process.gone.add_done_callback(self._on_gone)
        return process

    async def _start_process(
        self, key: object, request: bytes, sink: Callable[[bytes], bool], stdin: int | None
    ) -> Process:
        for _ in range(2):  # a zygote that was killed or stopped is replaced, once
            try:
                zygote = await self._ready()
                control, output = await zygote.fork_supervisor(key, stdin)
            except OSError as error:
                raise CommandStartError(f"no process or file descriptor is free: {error.strerror}") from error
            process = Process(control, output, sink, None if self._sandbox is None else zygote.kill, self._rate)
            process.gone.add_done_callback(zygote.wake)  # it may have orphans to end
            try:
                await process.begin(request)
                return process
            except CommandStartError as failure:
                if process.has_supervisor:
                    raise
                log.warning("starting another zygote, the last one failed: %s", failure)
                self._replace(zygote)
        raise CommandStartError("its supervisor did not start; see the server's log")

    async def close(self) -> None:
        """End the zygote. Trees end with their processes: close those first. A sandbox ends with all in it."""
        self._idle_sandboxes.remove(self)
        if self._zygote is not None:
            self._replace(self._zygote)
        if self._ending is not None:
            await asyncio.shield(self._ending)

    def retire(self) -> None:
        """End a sandbox in which no command runs. The next command starts another."""
        if not self._busy and self._zygote is not None:
            self._replace(self._zygote)

    async def _ready(self) -> "Zygote":
        if self._zygote is not None and not self._zygote.is_alive:
            self._replace(self._zygote)
        while self._ending is not None and not self._ending.done():  # its end kills all processes of the same user
            await asyncio.wait([self._ending])
        if self._zygote is None:
            self._zygote = Zygote(self._sandbox)
        zygote = self._zygote
        try:
            listener = await zygote.wait_entered()
        except CommandStartError:
            self._replace(zygote)
            raise
        if listener is not None and self._on_enter is not None:
            self._on_enter(listener)
        return zygote

    def _replace(self, zygote: "Zygote") -> None:
        """End this zygote; the next command starts another. Several commands may call this at once."""
        if self._zygote is zygote:
            self._zygote = None
            self._ending = asyncio.ensure_future(self._end(zygote))

    async def _end(self, zygote: "Zygote") -> None:
        try:
            await zygote.close()
        finally:
            if self._on_exit is not None:
                self._on_exit()

    def _on_gone(self, *_: object) -> None:
        self._busy -= 1
        if not self._busy and self._sandbox is not None and self._zygote is not None:
            self._idle_sandboxes.add(self)


class Zygote:
    """The small process that forks supervisors. Raises OSError if it can't start."""

    def __init__(self, sandbox: SandboxHandle | None = None) -> None:
        self._killed = False
        self._sandbox = sandbox
        self._entering: asyncio.Future[socket.socket | None] | None = None
        self._killing: asyncio.Future[None] | None = None
        self._key: object = None  # of all commands since NEEDS_NEW was sent
        self._channel, theirs = socket.socketpair()
        self._channel.setblocking(False)
        with theirs, contextlib.ExitStack() as undo:
            undo.callback(self._channel.close)
            self._process = _spawn_unsandboxed(theirs) if sandbox is None else self._spawn_in_sandbox(sandbox, theirs)
            undo.pop_all()

    @property
    def is_alive(self) -> bool:
        return not self._killed and self._process.poll() is None

    async def wait_entered(self) -> socket.socket | None:
        """Wait until it serves. Return its proxy's listener to the first caller. Raises CommandStartError."""
        entering = self._entering
        if entering is None:
            return None
        listener = await asyncio.shield(entering)
        if self._entering is None:
            return None
        self._entering = None
        return listener

    def _spawn_in_sandbox(self, sandbox: SandboxHandle, theirs: socket.socket) -> "subprocess.Popen[bytes]":
        report, its_end = socket.socketpair()
        with its_end:
            try:
                process = sandbox.spawn(theirs, its_end)
            except BaseException:
                report.close()
                raise
        self._entering = asyncio.ensure_future(_read_report(report))
        self._entering.add_done_callback(lambda done: done.cancelled() or done.exception())  # asked for or not
        return process

    def kill(self) -> None:
        """End the sandbox with all its processes."""
        if self.is_alive:
            with contextlib.suppress(OSError):
                os.killpg(self._process.pid, signal.SIGKILL)
        self._killed = True  # even before its end: no command may start there any more
        if self._sandbox is not None and (self._killing is None or self._killing.done()):
            self._killing = asyncio.get_running_loop().run_in_executor(None, self._sandbox.kill)

    def wake(self, *_: object) -> None:
        """Continue the zygote, in case a command stopped it."""
        if self._process.returncode is None:  # only then is the process id surely its own
            with contextlib.suppress(OSError):
                os.kill(self._process.pid, signal.SIGCONT)

    async def fork_supervisor(self, key: object, stdin: int | None = None) -> tuple[socket.socket, int]:
        """Return a supervisor's control socket, and the read end of its command's output. It is new, or all its earlier
        commands had the same `key`. `stdin`: see `start`. Raises OSError."""
        self.wake()
        control, theirs = socket.socketpair()
        with theirs:
            try:
                output, write_end = os.pipe()
            except OSError:
                control.close()
                raise
            try:
                await self._send(key, [theirs.fileno(), write_end, *([] if stdin is None else [stdin])])
            except BaseException:
                control.close()
                os.close(output)
                raise
            finally:
                os.close(write_end)
        control.setblocking(False)
        os.set_blocking(output, False)
        return control, output

    async def _send(self, key: object, descriptors: list[int]) -> None:
        while True:
            try:
                if key != self._key:
                    if self._key is not None:
                        self._channel.send(NEEDS_NEW)
                    self._key = key
                socket.send_fds(self._channel, [b"+"], descriptors)
                return
            except BlockingIOError:  # hundreds of commands are starting
                await _wait_ready(self._channel, to_write=True)
            except (BrokenPipeError, ConnectionResetError):
                return  # a dead zygote, which the control socket shows too

    async def close(self) -> None:
        """End the zygote, and wait for its end."""
        self.wake()
        with self._channel, contextlib.suppress(OSError, TimeoutError, subprocess.TimeoutExpired):
            self._channel.shutdown(socket.SHUT_WR)
            async with asyncio.timeout(END_WITHIN):
                await asyncio.get_running_loop().sock_recv(self._channel, 1)  # returns at its end: it sends nothing
            if self._sandbox is None:
                self._process.wait(END_WITHIN)
        if self._sandbox is not None:
            self.kill()
            if self._killing is not None:  # else it would kill the user's next sandbox
                await asyncio.shield(self._killing)
            await asyncio.to_thread(self._process.wait)
        elif self.is_alive:
            os.killpg(self._process.pid, signal.SIGKILL)  # with the waiting supervisor, not the working ones
            self._process.wait()


def _spawn_unsandboxed(theirs: socket.socket) -> "subprocess.Popen[bytes]":
    process = subprocess.Popen(
        [sys.executable, "-I", "-S", str(SUPERVISOR), str(theirs.fileno()), *_psutil()],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,  # the server's stdout carries the protocol
        cwd="/",
        env={},  # no variables of the server for a command to find
        pass_fds=[theirs.fileno()],
        start_new_session=True,
    )
    if hasattr(resource, "prlimit"):  # Linux
        with contextlib.suppress(OSError):  # an engine may refuse it
            _, most = resource.prlimit(process.pid, resource.RLIMIT_CORE)
            resource.prlimit(process.pid, resource.RLIMIT_CORE, (0, most))  # a core dump can fill the disk
    return process


async def _read_report(report: socket.socket) -> socket.socket | None:
    """Return the listener, if any, that comes with `ready`. Raises CommandStartError with any other report."""
    report.setblocking(False)
    text = b""
    with report:
        try:
            async with asyncio.timeout(ENTER_WITHIN):
                while len(text) < MAX_REPORT:
                    await _wait_ready(report, to_write=False)
                    piece, descriptors, _, _ = socket.recv_fds(report, MAX_REPORT, 1)
                    if descriptors or piece.endswith(b"ready"):
                        return socket.socket(fileno=descriptors[0]) if descriptors else None
                    if not piece:
                        break
                    text += piece
        except TimeoutError:
            text = text or b"it took too long"
    line = " ".join(text.decode("utf-8", "replace").split()) or "it ended without a message"
    raise CommandStartError(f"the sandbox can't be started: {line[:MAX_SHOWN]}")


def _set_ready(ready: "asyncio.Future[None]") -> None:
    if not ready.done():
        ready.set_result(None)


async def _wait_ready(channel: socket.socket, *, to_write: bool) -> None:
    loop = asyncio.get_running_loop()
    add, remove = (loop.add_writer, loop.remove_writer) if to_write else (loop.add_reader, loop.remove_reader)
    ready: asyncio.Future[None] = loop.create_future()
    add(channel, _set_ready, ready)
    ready.add_done_callback(lambda _: remove(channel))
    await ready


def _psutil() -> list[str]:
    """Return psutil's folder, for systems whose /proc does not list children."""
    if Path("/proc/thread-self/children").exists():
        return []
    import importlib.util  # start-up: few systems need it

    spec = importlib.util.find_spec("psutil")
    return [str(Path(spec.origin).parent.parent)] if spec is not None and spec.origin else []

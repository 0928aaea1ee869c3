"""Start commands through a zygote: one for a server without a sandbox, or one in each sandbox."""

import asyncio
import contextlib
import logging
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Protocol

from toolgate.tools.api.concurrency.rate_limiter import ByteRateLimiter
from toolgate.tools.workspace.processes.channel_slot import NEEDS_NEW
from toolgate.tools.workspace.processes.idle_sandboxes import IdleSandboxes
from toolgate.tools.workspace.processes.process import OUTPUT_RATE, CommandStartError, Launch, Process
from toolgate.tools.workspace.processes.start_queue import StartQueue, StartWait

SUPERVISOR = Path(__file__).with_name("supervisor.py")
END_WITHIN = 1.0  # seconds for a zygote to see that its socket is closed
ENTER_WITHIN = 15.0  # seconds for a sandbox to start, without its wait for a turn; it takes some hundredths
MAX_REPORT = 4096  # bytes of a sandbox's error report
MAX_SHOWN = 300  # characters of it in an error text
GATHER = 2.0  # seconds in which the commands of a sandbox that ended are lost: as a rule some hundredths

log = logging.getLogger(__name__)


class SandboxHandle(Protocol):
    """A sandbox (tools/workspace/sandbox/process.py)."""

    @property
    def uid(self) -> int | None:
        """The user of its commands, if not the server's."""
        ...

    @property
    def is_alone(self) -> bool:
        """Whether all that runs as its user may end with it."""
        ...

    def spawn(self, channel: socket.socket, report: socket.socket) -> "subprocess.Popen[bytes]": ...

    def kill(self) -> None:
        """End all that runs as its user."""
        ...


class CommandRunner:
    """Starts commands through one zygote, which starts with the first command.

    With a `sandbox` the zygote runs inside it. `on_enter` gets the proxy's listener of each new sandbox, and `on_exit`
    is called at its end. `idle_sandboxes` are those without commands. A sandbox starts in its turn in the queue
    `starts`, in which `owner` has its share. `on_loss` gets the number of commands that were lost with a sandbox, and
    why it ended.
    """

    def __init__(
        self,
        sandbox: SandboxHandle | None = None,
        on_enter: Callable[[socket.socket], None] | None = None,
        on_exit: Callable[[], None] | None = None,
        idle_sandboxes: IdleSandboxes | None = None,
        starts: StartQueue | None = None,
        owner: str = "",
        on_loss: Callable[[int, str], None] | None = None,
    ) -> None:
        self._sandbox = sandbox
        self._on_loss = on_loss
        self._lost: list[str] = []  # reasons, of commands that were lost with their sandbox
        self._report: asyncio.TimerHandle | None = None
        self._on_enter = on_enter
        self._on_exit = on_exit
        self._idle_sandboxes = idle_sandboxes or IdleSandboxes()
        self._starts = starts or StartQueue()
        self._owner = owner
        self._turn: asyncio.Task[None] | None = None  # the next start of the sandbox, in the queue
        self._waiting = 0  # commands that wait for it
        self._rate = ByteRateLimiter(lambda: OUTPUT_RATE)
        self._zygote: Zygote | None = None
        self._busy = 0  # commands that run or start
        self._processes: set[Process] = set()  # whose commands run
        self._ending: asyncio.Future[None] | None = None

    async def start(
        self,
        launch: Launch,
        sink: Callable[[bytes], bool],
        stdin: int | None = None,
        wait: StartWait | None = None,
        stdout: int | None = None,
    ) -> Process:
        """Start a command; `sink` gets its output and returns whether it was kept. `stdin` is the descriptor of its
        input; None: empty. `stdout`, which comes with an input, is that of its standard output: the sink then gets its
        standard error alone. `wait` is its wait for a new sandbox. Raises CommandStartError."""
        request = launch.encode()
        self._busy += 1
        self._idle_sandboxes.remove(self)
        try:
            streams = [each for each in (stdin, stdout) if each is not None]
            process = await self._start_process(launch.supervisor_key, request, sink, streams, wait or StartWait())
        except BaseException:
            self._on_gone()
            raise
        if process.gone.done():  # now: the next command may need to know that none runs
            self._on_gone()
        else:
            self._processes.add(process)
            process.gone.add_done_callback(lambda _: self._processes.discard(process))
            process.gone.add_done_callback(lambda _: self._note_loss(process.loss_reason))
            process.gone.add_done_callback(self._on_gone)
        return process

    def _note_loss(self, reason: str) -> None:
        """Gather the commands that are lost with one sandbox, and report them together once none runs."""
        if not reason or self._on_loss is None:
            return
        self._lost.append(reason)
        if self._report is None:
            self._report = asyncio.get_running_loop().call_later(GATHER, self._report_loss)

    def _report_loss(self) -> None:
        if self._report is not None and self._on_loss is not None:
            self._report.cancel()
            self._report = None
            lost, self._lost = self._lost, []
            self._on_loss(len(lost), lost[0])

    async def _start_process(
        self, key: object, request: bytes, sink: Callable[[bytes], bool], streams: Sequence[int], wait: StartWait
    ) -> Process:
        for _ in range(2):  # a zygote that was killed or stopped is replaced, once
            try:
                zygote = await self._ready(wait)
                control, output = await zygote.fork_supervisor(key, streams)
            except OSError as error:
                raise CommandStartError(f"no process or file descriptor is free: {error.strerror}") from error
            process = Process(
                control,
                output,
                sink,
                None if self._sandbox is None else zygote.kill,
                self._rate,
                zygote.find_reason,
            )
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
        """End the zygote, and follow no command any more: close those first. A sandbox ends with all in it."""
        for process in [*self._processes]:
            process.abandon()  # such as one that measures, for which nothing waits
        self._idle_sandboxes.remove(self)
        if self._turn is not None:
            self._turn.cancel()
        self._report_loss()
        if self._zygote is not None:
            self._replace(self._zygote)
        if self._ending is not None:
            await asyncio.shield(self._ending)

    @property
    def is_running(self) -> bool:
        """Whether the sandbox starts, runs or ends."""
        ending = self._ending is not None and not self._ending.done()
        return self._busy > 0 or self._zygote is not None or ending

    def retire(self) -> None:
        """End a sandbox in which no command runs. The next command starts another."""
        if not self._busy and self._zygote is not None:
            self._replace(self._zygote)

    async def wait_ended(self) -> None:
        """Wait for the end of a sandbox that ends: it may kill all processes of the same user."""
        while self._ending is not None and not self._ending.done():
            await asyncio.wait([self._ending])

    async def _ready(self, wait: StartWait) -> "Zygote":
        if self._zygote is not None and not self._zygote.is_alive:
            self._replace(self._zygote)
        await self.wait_ended()
        if self._zygote is None and self._sandbox is None:
            self._zygote = Zygote()
        while self._zygote is None:
            await self._wait_turn(wait)
        zygote = self._zygote
        try:
            listener = await zygote.wait_entered()
        except CommandStartError:
            self._replace(zygote)
            raise
        if listener is not None and self._on_enter is not None:
            self._on_enter(listener)
        return zygote

    async def _wait_turn(self, wait: StartWait) -> None:
        """Wait until the sandbox starts. All commands share its place in the queue, which the last one gives up."""
        start = self._turn
        if start is None or start.done():
            start = self._turn = asyncio.ensure_future(self._start_in_turn())
        self._waiting += 1
        try:
            await wait.wait(start, self._starts.patience)
        finally:
            self._waiting -= 1
            if not self._waiting and self._turn is start and not start.done():
                start.cancel()
                self._turn = None
        if not start.done():
            raise CommandStartError(self._starts.refusal)
        if start.cancelled():
            raise CommandStartError("the server is shutting down")
        start.result()

    async def _start_in_turn(self) -> None:
        await self._starts.acquire(self._owner)
        try:
            zygote = self._zygote = Zygote(self._sandbox)
        except BaseException:
            self._starts.release(self._owner)
            raise
        zygote.on_entered(partial(self._on_entered, zygote))

    def _on_entered(self, zygote: "Zygote", done: "asyncio.Future[socket.socket | None]") -> None:
        """Free the turn. A sandbox that did not start ends, whether or not a command still waits for it."""
        self._starts.release(self._owner)
        if done.cancelled() or done.exception() is not None:
            self._replace(zygote)

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
        if not self._busy:
            self._report_loss()
        if not self._busy and self._sandbox is not None and self._zygote is not None:
            self._idle_sandboxes.add(self)


class Zygote:
    """The small process that forks supervisors. Raises OSError if it can't start."""

    def __init__(self, sandbox: SandboxHandle | None = None) -> None:
        self._killed = False
        self._first_reason = ""
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
        return process

    def on_entered(self, call: "Callable[[asyncio.Future[socket.socket | None]], object]") -> None:
        """Call when the sandbox has started, or failed to."""
        assert self._entering is not None
        self._entering.add_done_callback(call)

    def kill(self, *, with_user: bool = True) -> None:
        """End the sandbox with all its processes, those of its user included unless told otherwise."""
        if self.is_alive:
            with contextlib.suppress(OSError):
                os.killpg(self._process.pid, signal.SIGKILL)
        self._killed = True  # even before its end: no command may start there any more
        if self._sandbox is not None and with_user and (self._killing is None or self._killing.done()):
            self._killing = asyncio.get_running_loop().run_in_executor(None, self._sandbox.kill)

    def find_reason(self) -> str:
        """Return why the sandbox has ended, or ends as the supervisor of a command in it has."""
        code = self._process.poll()
        if self._killed and not self._first_reason:
            self._first_reason = "as one of them could not be ended otherwise"
        elif not self._first_reason:
            self._first_reason = "as the process that runs them ended" if code is None else _describe_exit(code)
        return self._first_reason

    def wake(self, *_: object) -> None:
        """Continue the zygote, in case a command stopped it."""
        if self._process.returncode is None:  # only then is the process id surely its own
            with contextlib.suppress(OSError):
                os.kill(self._process.pid, signal.SIGCONT)

    async def fork_supervisor(self, key: object, streams: Sequence[int] = ()) -> tuple[socket.socket, int]:
        """Return a supervisor's control socket, and the read end of its command's output. It is new, or all its earlier
        commands had the same `key`. `streams`: its input, and its standard output if apart. Raises OSError."""
        self.wake()
        control, theirs = socket.socketpair()
        with theirs:
            try:
                output, write_end = open_pipe(None if self._sandbox is None else self._sandbox.uid)
            except OSError:
                control.close()
                raise
            try:
                await self._send(key, [theirs.fileno(), write_end, *streams])
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
            self.kill(with_user=self._sandbox.is_alone)
            await self._close_listener()
            if self._killing is not None:  # else it would kill the user's next sandbox
                await asyncio.shield(self._killing)
            await asyncio.to_thread(self._process.wait)
        elif self.is_alive:
            os.killpg(self._process.pid, signal.SIGKILL)  # with the waiting supervisor, not the working ones
            self._process.wait()

    async def _close_listener(self) -> None:
        """Close the listener of the proxy if no command has come for it."""
        entering, self._entering = self._entering, None
        if entering is not None:
            await asyncio.wait([entering])
            if entering.exception() is None and (listener := entering.result()) is not None:
                listener.close()


def open_pipe(uid: int | None) -> tuple[int, int]:
    """Return the ends of a pipe, to read and to write. Processes of `uid`, if it is not the server's user, may open
    them again, as /dev/stdout and /dev/stderr. Raises OSError."""
    ends = os.pipe()
    if uid is not None:
        os.fchown(ends[0], uid, uid)
    return ends


def _spawn_unsandboxed(theirs: socket.socket) -> "subprocess.Popen[bytes]":
    return subprocess.Popen(
        [sys.executable, "-I", "-S", str(SUPERVISOR), str(theirs.fileno()), *_psutil()],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,  # the server's stdout carries the protocol
        cwd="/",
        env={},  # no variables of the server for a command to find
        pass_fds=[theirs.fileno()],
        start_new_session=True,
    )


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


def _describe_exit(code: int) -> str:
    number = -code if code < 0 else code - 128
    if 0 < number < signal.NSIG:
        return f"as its process was ended by signal {number}"
    return f"as its process ended with code {code}"


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

"""Follow the process tree of one command, by its supervisor, and read its output.

The head of `supervisor.py` describes the messages on the control socket.
"""

import asyncio
import contextlib
import logging
import os
import select
import signal
import socket
import struct
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import msgspec

from toolgate.tools.api.concurrency.rate_limiter import MIN_CHARGE, ByteRateLimiter
from toolgate.tools.workspace.processes import process_tree

OUTPUT_RATE = 64 * 2**20  # bytes a second of all commands of a principal: a tenth of the server's time
DISCARDED = 2  # a byte that is not kept counts so many times
CHUNK = 2**16  # a pipe's default capacity
DRAIN = 2**20  # a pipe's default maximum capacity
MAX_SAID = 2**16  # bytes without a newline: a supervisor sends less, but in a sandbox commands may imitate it
MAX_REQUEST = 8 * 2**20  # four times Linux's limit of one exec: more only costs memory
MAX_LEFT = 2**22  # Linux's limit of processes (proc(5), pid_max)
MAX_REASON = 1_000  # characters: two paths, and why neither works
START_WITHIN = 10.0  # seconds; it takes milliseconds, and a stopped supervisor must not block a call
STOPPED_AFTER = 0.5  # seconds without a start: then its command may have stopped the supervisor before the report
LATE = 0.5  # seconds after SIGKILL is due: a later supervisor was stopped
LATE_INSIDE = 3.0  # the same in a sandbox, which then ends as a whole; longer, for busy machines
TRIES = 3  # our own sweeps, a second apart: a survivor runs as another user

log = logging.getLogger(__name__)


class CommandStartError(Exception):
    """The command was not started; the text says why."""


class ReadOnly(msgspec.Struct, frozen=True):
    """How a command is kept from changing anything: a seccomp `filter`, and Landlock for all but `writable`, with the
    rights of `landlock_version`. 0: without Landlock, where read-only mounts do the same."""

    filter: bytes
    landlock_version: int
    writable: Sequence[Path] = ()

    def words(self) -> Sequence[str]:
        """Return it as words for the supervisor (read_only.py)."""
        paths = [f"writable={os.fsencode(path).hex()}" for path in self.writable]
        return [f"filter={self.filter.hex()}", f"landlock={self.landlock_version}", *paths]


class Launch(msgspec.Struct, frozen=True):
    """A command to start, in `cwd` or else in `fallback`. `limits` are resource limits by number (getrlimit(2)).
    `remove_only`: it may remove files but write none. `read_only`: it may change nothing. `owner` names whose it is.
    `is_apart`: it reaches no other process, as far as the kernel can do that without namespaces.
    `is_brief`: it probably ends soon, so its start may be reported a little later, with its end."""

    argv: Sequence[str]
    cwd: Path
    fallback: Path
    environment: Mapping[str, str]
    limits: Mapping[int, int] = msgspec.field(default_factory=dict)
    remove_only: bool = False
    read_only: ReadOnly | None = None
    owner: str = ""
    is_brief: bool = False
    is_apart: bool = False

    @property
    def supervisor_key(self) -> tuple[str, str, Mapping[int, int], bool]:
        """What two commands must have in common for one supervisor to start both: it has the limits for good."""
        return self.owner, str(self.fallback), self.limits, self.remove_only

    def encode(self) -> bytes:
        """Return it as a supervisor reads it. Raises CommandStartError for a command that no system can run."""
        limits = [f"{number}={value}" for number, value in self.limits.items()] + ["removing"] * self.remove_only
        limits += ["brief"] * self.is_brief + ["apart"] * self.is_apart
        limits += [] if self.read_only is None else self.read_only.words()
        fields = [str(self.cwd), str(self.fallback), " ".join(limits), str(len(self.argv)), *self.argv]
        fields += [f"{name}={value}" for name, value in self.environment.items() if name]
        encoded = [os.fsencode(field) for field in fields]
        if any(b"\0" in field for field in encoded):
            raise CommandStartError("a NUL character in the command, a directory or the environment")
        request = b"\0".join(encoded)
        if len(request) > MAX_REQUEST:
            raise CommandStartError(f"command and environment are {len(request):,} bytes, over {MAX_REQUEST:,}")
        return struct.pack("!I", len(request)) + request


class Process:
    """One command's process tree, as its supervisor reports it, and the reader of its output.

    `ended`: the exit code, 128 + N for signal N, or None if unknown. `gone`: True when no process of the tree is left,
    False when contact was lost. `left`: processes that the command left running. `moved`: it runs in the fallback
    directory. `sink` gets the output and returns whether it was kept; `rate` is shared by the principal's commands. A
    supervisor that has reported nothing for `stopped_after` seconds is woken.

    `end_sandbox` ends the tree's whole sandbox, and `find_reason` says why that has ended. A supervisor in there is no
    more trusted than its command: its process id is not used, and if it fails to end its tree the sandbox ends.
    """

    def __init__(
        self,
        control: socket.socket,
        output: int,
        sink: Callable[[bytes], bool],
        end_sandbox: Callable[[], None] | None = None,
        rate: ByteRateLimiter | None = None,
        find_reason: Callable[[], str] = lambda: "",
        stopped_after: float = STOPPED_AFTER,
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._control = control
        self._output: int | None = output
        self._sink = sink
        self._end_sandbox = end_sandbox
        self._find_reason = find_reason
        self.loss_reason = ""  # why contact was lost, with the whole sandbox
        self._stopped_after = stopped_after
        self._rate = rate or ByteRateLimiter(lambda: OUTPUT_RATE)
        self._is_kept = True  # the last of the output
        self._is_reading = False  # as output arrives; that of a command that ends at once is read then
        self._pause: asyncio.TimerHandle | None = None
        self._control_buffer = b""
        self._started: asyncio.Future[str | None] = self._loop.create_future()
        self.ended: asyncio.Future[int | None] = self._loop.create_future()
        self.gone: asyncio.Future[bool] = self._loop.create_future()
        self._supervisor = 0  # its process id, once reported
        self._backstop: asyncio.TimerHandle | None = None
        self._waking: asyncio.TimerHandle | None = None
        self.moved = False
        self.left = 0
        self._loop.add_reader(control.fileno(), self._on_control)  # by number: asyncio formats a socket's addresses

    @property
    def has_supervisor(self) -> bool:
        """Whether a supervisor has accepted the command."""
        return self._supervisor != 0

    async def begin(self, request: bytes) -> None:
        """Start the command. Raises CommandStartError; if cancelled, it ends whatever started."""
        failure = None
        self._waking = self._loop.call_later(self._stopped_after, self._signal, signal.SIGCONT)
        try:
            async with asyncio.timeout(START_WITHIN):
                with contextlib.suppress(BrokenPipeError, ConnectionResetError):
                    sent = self._control.send(request)  # all of it, unless the environment is large
                    if sent < len(request):
                        await self._loop.sock_sendall(self._control, memoryview(request)[sent:])
                failure = await self._started
        except TimeoutError:
            self._lose()
            if not self.has_supervisor:  # else the command may have started
                raise CommandStartError(f"its supervisor did not answer within {START_WITHIN:g} s") from None
        except BaseException:
            self.abandon()
            raise
        finally:
            self._waking.cancel()
        if failure is not None:
            self.abandon()
            raise CommandStartError(failure)

    def terminate(self, grace: float) -> None:
        """SIGTERM the whole tree, and SIGKILL the rest after `grace` seconds. A second call may shorten that."""
        if self.gone.done():
            return
        with contextlib.suppress(OSError):  # the reader notices a lost supervisor
            self._control.send(f"terminate {grace:.3f}\n".encode())
        self._signal(signal.SIGCONT)
        due = self._loop.time() + grace + (LATE if self._end_sandbox is None else LATE_INSIDE)
        if self._backstop is None or due < self._backstop.when():
            self._watch_over(due, TRIES)

    def abandon(self) -> None:
        """SIGKILL the rest of the tree and its supervisor, and stop following it."""
        if not self.gone.done():
            if self._end_sandbox is None:  # in a sandbox the closed control socket ends it
                self._signal(signal.SIGSTOP)  # so that it starts no more processes
                self._sweep()
                self._signal(signal.SIGKILL)
            self._settle(gone=False)

    def _lose(self) -> None:
        """Handle a supervisor that died before its tree, or sent nonsense."""
        if self._end_sandbox is not None and not self.gone.done():
            self.loss_reason = self._find_reason()
            self._end_sandbox()
        self.abandon()

    def _watch_over(self, due: float, tries: int) -> None:
        if self._backstop is not None:
            self._backstop.cancel()
        self._backstop = self._loop.call_at(due, self._enforce, tries)

    def _enforce(self, tries: int) -> None:
        """Do the work of a supervisor that was stopped, maybe repeatedly by its own commands."""
        self._sweep()
        if self.gone.done():  # its sandbox has just ended
            return
        self._signal(signal.SIGCONT)
        if tries > 1:
            self._watch_over(self._loop.time() + 1, tries - 1)

    def _sweep(self) -> None:
        if self._end_sandbox is not None:
            self._end_sandbox()
            return
        if self._is_supervised:
            process_tree.kill(lambda: process_tree.top_processes(self._supervisor))

    def _signal(self, number: signal.Signals) -> None:
        if self._end_sandbox is None and self._is_supervised:
            with contextlib.suppress(OSError):
                os.kill(self._supervisor, number)

    @property
    def _is_supervised(self) -> bool:
        """Whether the supervisor lives. It alone holds the socket's other end, so until then its pid is not reused."""
        if not self.has_supervisor or self.gone.done():
            return False
        poller = select.poll()
        poller.register(self._control, 0)  # its end is told unasked
        return not poller.poll(0)

    def _on_output(self) -> None:
        """Read one chunk, then let other tasks run."""
        size = self._read(CHUNK)
        now = self._loop.time()
        due = self._rate.charge(output_cost(size, is_kept=self._is_kept), now)
        if due > now and self._output is not None:
            self._loop.remove_reader(self._output)
            self._pause = self._loop.call_at(due, self._resume)

    def _resume(self) -> None:
        if self._output is not None:
            self._loop.add_reader(self._output, self._on_output)

    def _read(self, limit: int) -> int:
        """Pass on up to `limit` available bytes. Return 0 if there are none, now or ever."""
        if self._output is None:
            return 0
        try:
            data = os.read(self._output, limit)
        except BlockingIOError:
            return 0
        if data:
            self._is_kept = self._sink(data)
        else:
            self._close_output()
        return len(data)

    def _drain(self) -> None:
        """Read what is in the pipe without waiting for its end: a daemon may hold it open."""
        left = DRAIN
        while left > 0 and (size := self._read(CHUNK)):
            left -= size

    def _close_output(self) -> None:
        if self._pause is not None:
            self._pause.cancel()
        if self._output is not None:
            if self._is_reading:
                self._loop.remove_reader(self._output)
            os.close(self._output)
            self._output = None

    def _on_control(self) -> None:
        try:
            data = self._control.recv(4096)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        *lines, self._control_buffer = (self._control_buffer + data).split(b"\n")
        try:
            for line in lines:
                self._on_line(os.fsdecode(line))
        except (ValueError, asyncio.InvalidStateError):  # no supervisor's words
            data = b""
        if self.gone.done():
            return
        if not data or len(self._control_buffer) > MAX_SAID:
            self._lose()
        elif self._started.done() and not self._is_reading and self._output is not None:
            self._is_reading = True
            self._loop.add_reader(self._output, self._on_output)

    def _on_line(self, line: str) -> None:
        word, _, rest = line.partition(" ")
        match word:
            case "here":
                self._supervisor = int(rest)
            case "started":
                self.moved = rest == "1"
                self._started.set_result(None)
            case "failed":
                self._started.set_result(rest[:MAX_REASON])
            case "exited":
                code, self.left = _parse_exited(rest)
                self._drain()
                self.ended.set_result(code if code >= 0 else 128 - code)
            case "gone":
                if not self.gone.done():
                    self._settle(gone=True)
            case _:
                log.error("unknown message from a supervisor: %r", line[:MAX_REASON])
                raise ValueError(word)  # once: in a sandbox a command may send it a million times

    def _settle(self, gone: bool) -> None:
        """Set the final state, and end what waits for a time."""
        for timer in (self._backstop, self._waking):
            if timer is not None:
                timer.cancel()
        self._drain()
        self._close_output()
        self._loop.remove_reader(self._control.fileno())
        self._control.close()
        if not self._started.done():  # a supervisor that died may have started it
            self._started.set_result(None if self.has_supervisor else "its supervisor died")
        if not self.ended.done():
            self.ended.set_result(None)
        self.gone.set_result(gone)


def output_cost(size: int, *, is_kept: bool) -> int:
    """Return the bytes that a read of `size` counts as."""
    return max(size, MIN_CHARGE) * (1 if is_kept else DISCARDED)


def _parse_exited(rest: str) -> tuple[int, int]:
    """Return a valid exit code and number of processes. Raises ValueError."""
    code, left = map(int, rest.split())
    if not (-signal.NSIG < code <= 255 and 0 <= left <= MAX_LEFT):
        raise ValueError(rest)
    return code, left

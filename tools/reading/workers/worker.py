"""Run as a worker that reads foreign pages and pictures where it may be killed, one job after another.

Foreign bytes may make a library run for ever, take all memory, crash, or do anything at all, which it can't prevent
itself. So the worker loads what it needs first, and then gives up its user, its privileges, opening files and starting
processes (`confine`). Its memory is limited, its CPU time per job, and on Linux it dies with its parent.

Run as `python -E -P -m toolgate.tools.builtin.worker_main`. Standard input is a stream socket that speaks
tools/reading/workers/messages.py, and its end is the worker's.
"""

import contextlib
import logging
import os
import resource
import signal
import socket
import sys
import traceback
from collections.abc import Callable, Mapping
from typing import Any, BinaryIO

import msgspec

from toolgate.tools.api.errors import ToolError
from toolgate.tools.reading.workers import messages
from toolgate.tools.reading.workers.messages import JobResult, WorkerJob, WorkerMessage, WorkerReady, WorkerStart
from toolgate.tools.workspace.sandbox import enter

PR_SET_PDEATHSIG, PR_SET_DUMPABLE = 1, 4  # linux/prctl.h
WORN_JOBS = 200  # after so many, leaks of the libraries show
WORN_BYTES = 200 * 2**20  # of memory not returned to the system
NICE = 5  # the server has priority
FIRST_TO_GO = b"500"  # when memory runs out, before the server (proc(5), oom_score_adj)
ZERO_LIMITS = (
    resource.RLIMIT_CORE,
    resource.RLIMIT_FSIZE,
    resource.RLIMIT_NPROC,
    resource.RLIMIT_NOFILE,  # open files stay open; no file, socket or pipe can be added
)

# By name: the type of the requests, the function that loads the libraries, the function that does the job.
JobTable = Mapping[str, tuple[Any, Callable[[], None], Callable[[Any], Any]]]


def serve(jobs: JobTable) -> None:
    """Do the server's jobs until it closes the socket."""
    channel = socket.socket(fileno=0)
    source = channel.makefile("rb")
    start = read_message(source, WorkerStart)
    if start is None:
        return
    kind, prepare, work = jobs[start.job]
    try:
        limit_resources()
        prepare()  # a confined worker can't load a library
        about = MemoryMeter()
    except Exception:  # noqa: BLE001  # the server logs it
        channel.sendall(messages.encode_frame(WorkerReady(fault=traceback.format_exc())))
        return
    channel.sendall(messages.encode_frame(WorkerReady(confine(start))))
    count = 0
    while (job := read_message(source, WorkerJob)) is not None:
        allow_time()
        done = do_job(job, source, kind, work, about)
        count += 1
        worn = done.is_out_of_memory or count >= WORN_JOBS or about.bytes() > WORN_BYTES
        channel.sendall(messages.encode_frame(msgspec.structs.replace(done, is_worn=worn)))


def limit_resources() -> None:
    """Lower this process's priority and memory below others'."""
    with contextlib.suppress(OSError):
        os.nice(NICE)
    with contextlib.suppress(ValueError, OSError):  # already lower, or the system has no such limit
        resource.setrlimit(resource.RLIMIT_AS, (messages.MEMORY, messages.MEMORY))
    with contextlib.suppress(OSError), open("/proc/self/oom_score_adj", "wb") as file:  # Linux alone has it
        file.write(FIRST_TO_GO)
    allow_time()


def allow_time() -> None:
    """Let the next job use CPU seconds at most: the system ends it even if no call waits for it."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    most = int(used.ru_utime + used.ru_stime) + messages.CPU + 1
    with contextlib.suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_CPU, (most, resource.getrlimit(resource.RLIMIT_CPU)[1]))


def confine(start: WorkerStart) -> tuple[str, ...]:
    """Give up what reading foreign bytes does not need. Return what the system does not let it give up."""
    sys.meta_path[:] = [NoFinder]
    logging.disable()  # libraries log about foreign pages
    os.dup2(1, 2)  # libraries write to stderr about them
    lacking: list[str] = []
    if start.user >= 0:
        try:
            _become(start.user)
        except OSError as error:
            lacking.append(f"a user of its own ({error.strerror})")
    for kind in ZERO_LIMITS:
        with contextlib.suppress(ValueError, OSError):
            resource.setrlimit(kind, (0, 0))
    if sys.platform == "linux":
        lacking += _confine_on_linux(start.filter)
    return tuple(lacking)


def _become(user: int) -> None:
    if sys.platform == "linux":
        enter.drop_bounding()  # now: who is not root may not
    os.setgroups([])
    os.setresgid(user, user, user)
    os.setresuid(user, user, user)


def _confine_on_linux(program: bytes) -> list[str]:
    enter.drop_capabilities()
    enter.libc.prctl(PR_SET_DUMPABLE, 0, 0, 0, 0)  # no process of the same user may read its memory
    enter.libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)  # after the change of user, which resets it
    if not program:
        return ["a system call filter (libseccomp is missing)"]
    try:
        enter.load_filter(program)
    except OSError as error:
        return [f"a system call filter ({error.strerror})"]
    return []


class NoFinder:
    """Finds no module: libraries look for optional ones, and expect ImportError rather than a failed open."""

    @staticmethod
    def find_spec(*_: object) -> None:
        return None


def read_message(source: BinaryIO, kind: type[WorkerMessage]) -> WorkerMessage | None:
    """Return the next message, or None at the end."""
    head = source.read(messages.LENGTH.size)
    if len(head) < messages.LENGTH.size:
        return None
    (size,) = messages.LENGTH.unpack(head)
    data = source.read(size)
    return msgspec.msgpack.decode(data, type=kind) if len(data) == size else None


def do_job(job: WorkerJob, source: BinaryIO, kind: Any, work: Callable[[Any], Any], about: "MemoryMeter") -> JobResult:
    try:
        body = source.read(job.body)
        request = msgspec.msgpack.decode(job.request, type=kind)
        if body:
            request = msgspec.structs.replace(request, body=body)
        return JobResult(msgspec.msgpack.encode(work(request)))
    except ToolError as error:
        return JobResult(refusal=error.text)
    except MemoryError:
        return JobResult(is_out_of_memory=True)
    except Exception:  # noqa: BLE001  # the server logs it
        return JobResult(is_out_of_memory=True) if about.is_short() else JobResult(fault=traceback.format_exc())


class MemoryMeter:
    """Reads this process's memory from files of Linux that it opens before confinement."""

    def __init__(self) -> None:
        self._files: list[int] = []
        with contextlib.suppress(OSError):
            self._files = [os.open(f"/proc/self/{name}", os.O_RDONLY) for name in ("statm", "status")]

    def bytes(self) -> int:
        """Return the current size, or the peak on systems other than Linux."""
        if not self._files:
            return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return int(os.pread(self._files[0], 200, 0).split()[1]) * resource.getpagesize()

    def is_short(self) -> bool:
        """Return whether memory likely ran out: libraries without it raise anything."""
        if not self._files:  # nothing limits memory there
            return False
        lines = os.pread(self._files[1], 4_096, 0).splitlines()
        peak = next((int(line.split()[1]) * 1024 for line in lines if line.startswith(b"VmPeak:")), 0)
        return peak > messages.MEMORY // 2

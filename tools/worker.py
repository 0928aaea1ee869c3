"""A worker: a program that reads foreign pages and pictures where it may be killed, one job after another.

What it reads may make a library take for ever, take all memory or crash, and nothing can stop that from inside.
Run as `python -E -P -m toolgate.tools.worker`; standard input is a stream socket that speaks tools/jobs.py, and its end
is the worker's. Its memory is limited, its processor time for each job, and on Linux it dies with its parent.
"""

import contextlib
import logging
import os
import resource
import signal
import socket
import sys
import traceback
from collections.abc import Callable
from typing import Any, BinaryIO

import msgspec

from toolgate.tools import jobs, pages, pdf, pictures
from toolgate.tools.errors import ToolError
from toolgate.tools.jobs import Done, Job, Message, Ready, Start
from toolgate.tools.search import borrowed, scraped

PR_SET_PDEATHSIG = 1  # linux/prctl.h
WORN_JOBS = 200  # after so many, leaks of the libraries would begin to tell
WORN_BYTES = 200 * 2**20  # of memory that did not go back to the system
NICE = 5  # the server must stay quick beside it
# name → the type of its requests, what loads its libraries, what does it
JOBS: dict[str, tuple[Any, Callable[[], None], Callable[[Any], Any]]] = {
    "page": (pages.Raw, pages.prepare, pages.read),
    "text": (pages.Raw, pages.load_encodings, pages.read),
    "search": (scraped.Jobs, borrowed.prepare, borrowed.answered),
    "pdf": (pages.Raw, pdf.prepare, pdf.read),
    "picture": (pictures.Raw, pictures.prepare, pictures.fitted),
}


def main() -> None:
    channel = socket.socket(fileno=0)
    source = channel.makefile("rb")
    start = received(source, Start)
    if start is None:
        return
    kind, prepare, work = JOBS[start.job]
    try:
        confine()
        prepare()
        about = Memory()
    except Exception:  # noqa: BLE001  # the server logs it
        channel.sendall(jobs.framed(Ready(fault=traceback.format_exc())))
        return
    channel.sendall(jobs.framed(Ready()))
    count = 0
    while (job := received(source, Job)) is not None:
        allow_time()
        done = did(job, source, kind, work, about)
        count += 1
        worn = done.exhausted or count >= WORN_JOBS or about.bytes() > WORN_BYTES
        channel.sendall(jobs.framed(msgspec.structs.replace(done, worn=worn)))


def confine() -> None:
    """Give up what is not needed, so that no job can have it."""
    logging.disable()  # the libraries' words about foreign pages would go to the server's log
    with contextlib.suppress(OSError):
        os.nice(NICE)
    for kind, most in ((resource.RLIMIT_AS, jobs.MEMORY), (resource.RLIMIT_CORE, 0)):
        with contextlib.suppress(ValueError, OSError):  # it is lower already, or the system has none
            resource.setrlimit(kind, (most, most))
    allow_time()
    if sys.platform == "linux":
        import ctypes

        with contextlib.suppress(OSError, AttributeError):
            ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


def allow_time() -> None:
    """The system ends this process when the next job takes more: also when nobody waits for it any more."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    most = int(used.ru_utime + used.ru_stime) + jobs.CPU + 1
    with contextlib.suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_CPU, (most, resource.getrlimit(resource.RLIMIT_CPU)[1]))


def received(source: BinaryIO, kind: type[Message]) -> Message | None:
    """The next message; None at the end."""
    head = source.read(jobs.LENGTH.size)
    if len(head) < jobs.LENGTH.size:
        return None
    (size,) = jobs.LENGTH.unpack(head)
    data = source.read(size)
    return msgspec.msgpack.decode(data, type=kind) if len(data) == size else None


def did(job: Job, source: BinaryIO, kind: Any, work: Callable[[Any], Any], about: "Memory") -> Done:
    try:
        body = source.read(job.body)
        request = msgspec.msgpack.decode(job.request, type=kind)
        if body:
            request = msgspec.structs.replace(request, body=body)
        return Done(msgspec.msgpack.encode(work(request)))
    except ToolError as error:
        return Done(refusal=error.text)
    except MemoryError:
        return Done(exhausted=True)
    except Exception:  # noqa: BLE001  # the server logs it
        return Done(exhausted=True) if about.is_short() else Done(fault=traceback.format_exc())


class Memory:
    """What this process has of it, by files of Linux that are opened while they can be."""

    def __init__(self) -> None:
        self._files: list[int] = []
        with contextlib.suppress(OSError):
            self._files = [os.open(f"/proc/self/{name}", os.O_RDONLY) for name in ("statm", "status")]

    def bytes(self) -> int:
        """Held now; elsewhere than on Linux the most there ever were."""
        if not self._files:
            return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return int(os.pread(self._files[0], 200, 0).split()[1]) * resource.getpagesize()

    def is_short(self) -> bool:
        """Whether a failure is likely for want of it: libraries that get none say all kinds of things."""
        if not self._files:  # nothing limits memory there
            return False
        lines = os.pread(self._files[1], 4_096, 0).splitlines()
        peak = next((int(line.split()[1]) * 1024 for line in lines if line.startswith(b"VmPeak:")), 0)
        return peak > jobs.MEMORY // 2


if __name__ == "__main__":
    main()

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
from toolgate.tools.jobs import Done, Job
from toolgate.tools.search import borrowed, scraped

PR_SET_PDEATHSIG = 1  # linux/prctl.h
WORN_JOBS = 200  # after so many, leaks of the libraries would begin to tell
WORN_BYTES = 200 * 2**20  # of memory that did not go back to the system
NICE = 5  # the server must stay quick beside it

# name → the type of its requests, what loads its libraries, what does it
JOBS: dict[str, tuple[Any, Callable[[], None], Callable[[Any], Any]]] = {
    "page": (pages.Raw, pages.prepare, pages.read),
    "search": (scraped.Jobs, borrowed.prepare, borrowed.answered),
    "pdf": (pages.Raw, pdf.prepare, pdf.read),
    "picture": (pictures.Raw, pictures.prepare, pictures.fitted),
}


def main() -> None:
    confine()
    channel = socket.socket(fileno=0)
    source = channel.makefile("rb")
    count = 0
    while (job := received(source)) is not None:
        allow_time()
        done = did(job)
        del job
        count += 1
        worn = done.exhausted or count >= WORN_JOBS or memory() > WORN_BYTES
        channel.sendall(jobs.framed(msgspec.structs.replace(done, worn=worn)))


def confine() -> None:
    """Give up what is not needed, so that no job can have it."""
    logging.disable()  # the libraries' words about foreign pages would go to the server's log
    with contextlib.suppress(OSError):
        os.nice(NICE)
    for kind, most in ((resource.RLIMIT_AS, jobs.MEMORY), (resource.RLIMIT_CORE, 0)):
        with contextlib.suppress(ValueError, OSError):  # it is lower already, or the system has none
            resource.setrlimit(kind, (most, most))
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


def received(source: BinaryIO) -> Job | None:
    """The next job; None at the end."""
    head = source.read(jobs.LENGTH.size)
    if len(head) < jobs.LENGTH.size:
        return None
    (size,) = jobs.LENGTH.unpack(head)
    data = source.read(size)
    return msgspec.msgpack.decode(data, type=Job) if len(data) == size else None


def did(job: Job) -> Done:
    kind, prepare, work = JOBS[job.name]
    try:
        prepare()  # while there is memory: a library that can't be loaded is a fault
        result = work(msgspec.msgpack.decode(job.request, type=kind))
        return Done(msgspec.msgpack.encode(result))
    except ToolError as error:
        return Done(refusal=error.text)
    except MemoryError:
        return Done(exhausted=True)
    except Exception:  # noqa: BLE001  # the server logs it
        return Done(exhausted=True) if is_short() else Done(fault=traceback.format_exc())


def is_short() -> bool:
    """Whether a failure is likely for want of memory: libraries that get none say all kinds of things."""
    try:
        with open("/proc/self/status") as file:
            peak = next(int(line.split()[1]) * 1024 for line in file if line.startswith("VmPeak:"))
    except (OSError, StopIteration):  # not Linux: nothing limits memory there
        return False
    return peak > jobs.MEMORY // 2


def memory() -> int:
    """Bytes held now; elsewhere than on Linux the most there ever were."""
    try:
        with open("/proc/self/statm") as file:
            return int(file.read().split()[1]) * resource.getpagesize()
    except OSError:
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


if __name__ == "__main__":
    main()

"""Define the messages between the server and a worker, and a worker's limits.

A frame is a length (4 bytes, big endian) and that many bytes of MessagePack. The server sends a WorkerStart and then
WorkerJobs; the worker a WorkerReady and then JobResults. A job's body follows its frame without a copy, as it may be
large.
"""

import struct
from typing import TypeVar

import msgspec

MEMORY = 768 * 2**20  # bytes of address space: 8 MiB of prose take 330 MiB, the largest picture 510
CPU = 20  # CPU seconds for one job; a large page takes two
MAX_RESULT = 8 * 2**20  # bytes of an answer: a text of 100,000 characters, or a picture that fits a client
LENGTH = struct.Struct("!I")


class WorkerStart(msgspec.Struct, frozen=True):
    """The name of the worker's job, its user (-1: unchanged) and its seccomp program (empty: none)."""

    job: str
    user: int
    filter: bytes


class WorkerReady(msgspec.Struct, frozen=True):
    """`lacking`: confinement that this system does not offer. `fault`: why the libraries can't be loaded."""

    missing: tuple[str, ...] = ()
    fault: str = ""


class WorkerJob(msgspec.Struct, frozen=True):
    """An encoded request, and the size of the body that follows."""

    request: msgspec.Raw
    body: int = 0


class JobResult(msgspec.Struct, frozen=True):
    """One of: an encoded result, a refusal for the model, a traceback, or out of memory. `is_worn`: another worker
    should do the next job."""

    result: bytes = b""
    refusal: str = ""
    fault: str = ""
    is_out_of_memory: bool = False
    is_worn: bool = False


WorkerMessage = TypeVar("WorkerMessage", WorkerStart, WorkerReady, WorkerJob, JobResult)


def encode_frame(message: WorkerStart | WorkerReady | WorkerJob | JobResult) -> bytes:
    data = msgspec.msgpack.encode(message)
    return LENGTH.pack(len(data)) + data

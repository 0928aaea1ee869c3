"""Define the messages between the server and a worker, and what a worker may use.

A frame is a length (4 bytes, big endian) and that many bytes of MessagePack: a Start and then Jobs one way, a Ready and
then Dones the other. The body of a job follows its frame as it is: it may be large, and is copied nowhere.
"""

import struct
from typing import TypeVar

import msgspec

MEMORY = 768 * 2**20  # bytes of address space: 8 MiB of prose take 330 MiB, the largest picture 510
CPU = 20  # seconds of it for one job; a large page takes two
MAX_RESULT = 8 * 2**20  # bytes of an answer: a text of 100,000 characters, or a picture that fits a client
LENGTH = struct.Struct("!I")


class WorkerStart(msgspec.Struct, frozen=True):
    """Which jobs the worker is for, whom it becomes (-1: nobody else) and its program for seccomp (empty: none)."""

    job: str
    user: int
    filter: bytes


class WorkerReady(msgspec.Struct, frozen=True):
    """`lacking`: what of its confinement this system does not give. `fault`: the traceback, where its libraries can't
    be loaded."""

    missing: tuple[str, ...] = ()
    fault: str = ""


class WorkerJob(msgspec.Struct, frozen=True):
    """A request, encoded, and how many bytes of its body follow."""

    request: msgspec.Raw
    body: int = 0


class JobResult(msgspec.Struct, frozen=True):
    """The result, encoded; or why the request is refused, for a model; or the traceback of a fault of ours; or that
    the memory did not suffice. `worn`: another worker had better do the next job."""

    result: bytes = b""
    refusal: str = ""
    fault: str = ""
    is_out_of_memory: bool = False
    is_worn: bool = False


WorkerMessage = TypeVar("WorkerMessage", WorkerStart, WorkerReady, WorkerJob, JobResult)


def encode_frame(message: WorkerStart | WorkerReady | WorkerJob | JobResult) -> bytes:
    data = msgspec.msgpack.encode(message)
    return LENGTH.pack(len(data)) + data

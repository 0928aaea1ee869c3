"""What the server and a worker say to each other, and what a worker may use. Knows no job and no process.

A frame is a length (4 bytes, big endian) and that many bytes of MessagePack: a Job one way, a Done the other.
"""

import struct

import msgspec

MEMORY = 768 * 2**20  # bytes of address space: 8 MiB of prose take 330 MiB, the largest picture 510
CPU = 20  # seconds of it for one job; a large page takes two
MAX_DONE = 8 * 2**20  # bytes of an answer: a text of 100,000 characters, or a picture that fits a client
LENGTH = struct.Struct("!I")


class Job(msgspec.Struct, frozen=True):
    """Which of the worker's jobs, and its request, encoded."""

    name: str
    request: msgspec.Raw


class Done(msgspec.Struct, frozen=True):
    """The result, encoded; or why the request is refused, for a model; or the traceback of a fault of ours; or that
    the memory did not suffice. `worn`: another worker had better do the next job."""

    result: bytes = b""
    refusal: str = ""
    fault: str = ""
    exhausted: bool = False
    worn: bool = False


def framed(message: Job | Done) -> bytes:
    data = msgspec.msgpack.encode(message)
    return LENGTH.pack(len(data)) + data

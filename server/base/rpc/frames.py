"""Write and read messages as frames: JSON with its length before it.

JSON, because what travels is JSON by nature, whole numbers of any size included. Each end accepts only the messages of
the other; what does not fit is a MalformedFrameError.
"""

import asyncio
import struct
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager, nullcontext
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from toolgate.server.protocol.messages import replace_surrogates

LARGE = 2**20  # bytes: frames up to this size are not counted while they arrive
MAX_FRAME = 64 * 2**20  # bytes: four of the largest messages a client may send
HEAD = 64  # bytes that show what a message is
LENGTH = struct.Struct(">I")
NOTHING = msgspec.Raw(b"null")

T = TypeVar("T")


class MalformedFrameError(Exception):
    """The other end broke the rules; the text completes "it sent …"."""


class FrameArrivals:
    """Lets `most` large frames arrive at once, each within `seconds`: a sender may stop in the middle of each."""

    def __init__(self, most: int, seconds: float) -> None:
        self._room = asyncio.Semaphore(most)
        self._seconds = seconds

    @asynccontextmanager
    async def wait_for_room(self) -> AsyncGenerator[None]:
        """Enter when a further frame may arrive. Raises MalformedFrameError if it takes too long."""
        timeout = asyncio.timeout(self._seconds)
        async with self._room:
            try:
                async with timeout:
                    yield
            except TimeoutError:
                if not timeout.expired():
                    raise  # the connection's
                raise MalformedFrameError(f"only a part of a large message in {self._seconds:g} s") from None


def encode(value: Any) -> bytes:
    """Return a value as JSON; what UTF-8 can't hold is replaced, as on the way to the client. Raises TypeError."""
    try:
        return msgspec.json.encode(value, enc_hook=_encode_path)
    except UnicodeEncodeError:
        return msgspec.json.encode(replace_surrogates(msgspec.to_builtins(value, enc_hook=_encode_path)))


def encode_raw(value: Any) -> msgspec.Raw:
    return msgspec.Raw(encode(value))


def encode_exactly(value: Any) -> msgspec.Raw:
    """Return a value as JSON. Raises UnicodeEncodeError for what UTF-8 can't hold, and TypeError."""
    return msgspec.Raw(msgspec.json.encode(value, enc_hook=_encode_path))


def create_decoder(kind: Any) -> "msgspec.json.Decoder[Any]":
    return msgspec.json.Decoder(kind, dec_hook=_decode_path)


def encode_frame(message: msgspec.Struct) -> bytes:
    """Return a message with its length before it. Raises OverflowError for one that no frame may hold."""
    data = encode(message)
    if len(data) > MAX_FRAME:
        raise OverflowError(f"{len(data):,} bytes, over {MAX_FRAME:,}")
    return LENGTH.pack(len(data)) + data


def write(sink: asyncio.StreamWriter, data: bytes) -> None:
    """Write frames. To a closing connection nothing is written: uvloop raises RuntimeError there."""
    if not sink.is_closing():
        sink.write(data)


async def read_frame(
    source: asyncio.StreamReader,
    words: "msgspec.json.Decoder[T]",
    largest: int = MAX_FRAME,
    arrivals: FrameArrivals | None = None,
    find_largest: Callable[[bytes], int] | None = None,
) -> T:
    """Return the next message; a large one arrives among `arrivals`. `find_largest` returns how many bytes a message
    may have, by its first HEAD bytes. Raises MalformedFrameError, and at the end EOFError or ConnectionError."""
    (size,) = LENGTH.unpack(await source.readexactly(LENGTH.size))
    if size > largest:
        raise MalformedFrameError(f"a message of {size:,} bytes, over {largest:,}")
    async with nullcontext() if size <= LARGE or arrivals is None else arrivals.wait_for_room():
        data = b""
        if find_largest is not None and size > HEAD:
            data = await source.readexactly(HEAD)
            most = find_largest(data)
            if size > most:
                raise MalformedFrameError(f"a message of {size:,} bytes, over the {most:,} of its kind")
        data += await source.readexactly(size - len(data))
    try:
        return words.decode(data)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise MalformedFrameError(f"an invalid message: {error}"[:300]) from None


def _encode_path(value: Any) -> Any:
    if isinstance(value, Path):
        return str(value)
    raise TypeError(f"{type(value).__name__} is no JSON value")


def _decode_path(kind: type, value: Any) -> Any:
    if kind is Path and isinstance(value, str) and "\0" not in value:
        return Path(value)
    raise ValueError(f"{value!r} is no {kind.__name__}"[:200])

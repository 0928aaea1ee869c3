"""Encode the events of a stream for Redis and for other replicas."""

import msgspec

from toolgate.server.base.bus.bus import StreamEntry
from toolgate.transports.http.sessions.event_stream import EventStream


class StreamEvent(msgspec.Struct, frozen=True, array_like=True):
    """An event of a stream. Reading it needs the scopes `wanted`."""

    number: int
    data: bytes
    is_answer: bool
    wanted: tuple[str, ...]


_decoder = msgspec.msgpack.Decoder(StreamEvent)


def read_event(stream: EventStream, number: int, data: bytes) -> StreamEvent:
    return StreamEvent(number, data, number == stream.answered, tuple(sorted(stream.wanted)))


def format_entry(stream: EventStream, number: int) -> bytes:
    """Return the newest event of a stream as an entry in Redis."""
    [data] = stream.messages_after(number - 1)
    return msgspec.msgpack.encode(read_event(stream, number, data))


def parse_entries(entries: list[StreamEntry]) -> list[StreamEvent]:
    """Return the events of a stream in Redis. Raises msgspec.MsgspecError for those of another version."""
    return [_decoder.decode(entry.data) for entry in entries]

"""Read server-sent events. Source: HTML Living Standard, "Server-sent events"."""

from collections.abc import AsyncGenerator, AsyncIterator

import msgspec


class EventTooLargeError(Exception):
    """An event is larger than its reader takes."""


class ServerSentEvent(msgspec.Struct):
    """One event. `id` is that of the last event that had one, this one included. `retry`: milliseconds, if it says."""

    name: str = "message"
    data: str = ""
    id: str = ""
    retry: int | None = None


async def read_events(body: AsyncIterator[bytes], limit: int) -> AsyncGenerator[ServerSentEvent, None]:
    """Yield the events of a body. Raises EventTooLargeError for one of more than `limit` bytes."""
    building = _EventBuilder()
    async for line, waiting in _read_lines(body):
        if building.size + waiting > limit:
            raise EventTooLargeError
        event = None if line is None else building.add(line)
        if event is not None:
            yield event


class _EventBuilder:
    """The event whose lines come."""

    def __init__(self) -> None:
        self.size = 0
        self._lines: list[str] = []
        self._event = ServerSentEvent()

    def add(self, line: bytes) -> ServerSentEvent | None:
        """Take a line, and return the event that it ends, if any."""
        field, _, value = line.decode(errors="replace").partition(":")
        value = value.removeprefix(" ")
        match field:
            case "data":
                self._lines.append(value)
                self.size += len(line)
            case "event":
                self._event.name = value
            case "id" if "\0" not in value:
                self._event.id = value
            case "retry" if value.isdecimal() and len(value) < 10:
                self._event.retry = int(value)
            case "" if not value:
                return self._finish()
            case _:  # a comment, or a field that nobody knows
                pass
        return None

    def _finish(self) -> ServerSentEvent | None:
        event, lines = self._event, self._lines
        self._event, self._lines, self.size = ServerSentEvent(id=event.id), [], 0
        event.data = "\n".join(lines)
        return event if lines or event.name != "message" else None


async def _read_lines(body: AsyncIterator[bytes]) -> AsyncGenerator[tuple[bytes | None, int], None]:
    """Yield the lines of a body, and after each part the bytes of the line that has not ended."""
    parts, size = list[bytes](), 0
    async for part in body:
        first, *lines = part.split(b"\n")
        parts.append(first)
        size += len(first)
        if lines:
            lines.insert(0, b"".join(parts))
            parts = [lines.pop()]
            size = len(parts[0])
        for line in lines:
            yield line.rstrip(b"\r"), 0
        yield None, size

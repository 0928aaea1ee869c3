"""Reads the body of an HTTP request: bounded in size and in time. Knows nothing of what is in it."""

import asyncio

from toolgate.transports.guard import Headers, Receive

MAX_BODY = 16 * 2**20  # bytes: an 8 MiB message in base64 and its envelope
SLOW = 30.0  # seconds for a whole body


class TooLarge(Exception):
    """More than MAX_BODY bytes: 413."""


class TooSlow(Exception):
    """It did not come in time: 408."""


class Gone(Exception):
    """The client hung up before its body was complete."""


async def read(headers: Headers, receive: Receive, *, limit: int = MAX_BODY, seconds: float = SLOW) -> bytes:
    """The body. Raises TooLarge, TooSlow, Gone."""
    declared = headers.get(b"content-length", b"")
    if declared.isdigit() and int(declared) > limit:
        raise TooLarge
    try:
        async with asyncio.timeout(seconds):
            return await _whole(receive, limit)
    except TimeoutError:
        raise TooSlow from None


async def _whole(receive: Receive, limit: int) -> bytes:
    parts: list[bytes] = []
    size = 0
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise Gone
        part: bytes = message.get("body", b"")
        size += len(part)
        if size > limit:
            raise TooLarge
        parts.append(part)
        if not message.get("more_body"):
            return parts[0] if len(parts) == 1 else b"".join(parts)

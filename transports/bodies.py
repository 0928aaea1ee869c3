"""Reads the body of an HTTP request: bounded in size and in time. Knows nothing of what is in it."""

import asyncio

from toolgate.server.hold import Hold
from toolgate.transports.guard import Headers, Receive, Send, refuse

MAX_BODY = 16 * 2**20  # bytes: an 8 MiB message in base64 and its envelope
SLOW = 30.0  # seconds for a whole body


class TooLarge(Exception):
    """More than MAX_BODY bytes: 413."""


class TooSlow(Exception):
    """It did not come in time: 408."""


class Gone(Exception):
    """The client hung up before its body was complete."""


def is_json(headers: Headers) -> bool:
    """Whether the body says that it is JSON, and not packed: nothing is unpacked here, so it can't be a bomb either."""
    kind = headers.get(b"content-type", b"").partition(b";")[0].strip().lower()
    return kind == b"application/json" and headers.get(b"content-encoding", b"identity").lower() == b"identity"


async def read_or_refuse(headers: Headers, receive: Receive, send: Send, slow: Hold) -> bytes | None:
    """The body, if it comes in the time of `slow`; None when the request has been refused for it, or nobody is there
    any more."""
    try:
        return await read(headers, receive, slow)
    except TooLarge:  # the rest is read and thrown away, or the client would not see why
        await refuse(send, 413, f"more than {MAX_BODY} bytes")
    except TooSlow:
        await refuse(send, 408, "the body did not come in time", [(b"connection", b"close")])
    except Gone:
        pass
    return None


async def read(headers: Headers, receive: Receive, slow: Hold, *, limit: int = MAX_BODY) -> bytes:
    """The body. Raises TooLarge, TooSlow, Gone."""
    declared = headers.get(b"content-length", b"")
    if declared.isdigit() and (len(declared) > 19 or int(declared) > limit):
        raise TooLarge
    task = asyncio.current_task()
    assert task is not None
    slow.take(task)
    try:
        return await _whole(receive, limit)
    except asyncio.CancelledError:
        if slow.release(task):
            raise TooSlow from None
        raise
    finally:
        slow.release(task)


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

"""Read the body of an HTTP request, limited in size, in time, and in memory per sender."""

import asyncio

import msgspec

from toolgate.server.budget import Budget, Claim
from toolgate.server.protocol.asyncio_tasks import DeadlineTimer
from toolgate.transports.http.asgi import Headers, Message, Receive, Scope, Send, refuse

MAX_BODY = 16 * 2**20  # bytes: an 8 MiB message in base64 and its envelope
MAX_BODIES = 64 * 2**20  # bytes of one principal's bodies, until their work is done: four of the largest
MAX_ALL_BODIES = 128 * 2**20  # bytes of all bodies: each is in memory twice while it is decoded
SMALL = 4 * 1024  # bytes of a body that is not counted if it arrives at once: nearly all are smaller
BODY_TIME = 30.0  # seconds for a whole body


class BodyTooLargeError(Exception):
    """The body is larger than MAX_BODY: 413."""


class BodyTooSlowError(Exception):
    """The body did not arrive in time: 408."""


class BodyBudgetError(Exception):
    """The bodies of this sender, or of all, use up their budget: 503."""


class ClientDisconnectedError(Exception):
    """The client hung up before its body was complete."""


class Body(msgspec.Struct, frozen=True):
    """A request's body. `claim` is its part of the budget, or None for a small one that arrived at once."""

    data: bytes
    claim: Claim | None = None


def is_json(headers: Headers) -> bool:
    """Return whether the body is declared as JSON without compression: nothing is decompressed, so no bomb works."""
    kind = headers.get(b"content-type", b"").partition(b";")[0].strip().lower()
    return kind == b"application/json" and headers.get(b"content-encoding", b"identity").lower() == b"identity"


def take_small_body(scope: Scope) -> bytes | None:
    """Return a small body that has come whole with its head, or None: it is to be read."""
    connection = scope.get("toolgate.connection")
    return None if connection is None else connection.take_body(scope, SMALL)


class BodyReader:
    """Reads bodies within `slow` seconds each, with a memory `budget` per sender. An incomplete body counts as at least
    `least` bytes, since it occupies its connection."""

    def __init__(self, budget: Budget, slow: float = BODY_TIME, *, least: int = 0) -> None:
        self._budget = budget
        self._least = least
        self._slow = DeadlineTimer(slow)

    async def read_or_refuse(self, principal: str, headers: Headers, receive: Receive, send: Send) -> Body | None:
        """Return the body, or None after refusing the request or when its client has disconnected."""
        try:
            return await self.read(principal, headers, receive)
        except BodyTooLargeError:  # the rest is read and discarded, or the client would not see the answer
            await refuse(send, 413, f"the body has more than {MAX_BODY} bytes")
        except BodyTooSlowError:
            await refuse(send, 408, "the body did not arrive in time", [(b"connection", b"close")])
        except BodyBudgetError:
            await refuse(
                send,
                503,
                "too much data is being sent at once: try again later",
                [(b"connection", b"close"), (b"retry-after", b"1")],
            )
        except ClientDisconnectedError:
            pass
        return None

    async def read(self, principal: str, headers: Headers, receive: Receive, *, limit: int = MAX_BODY) -> Body:
        """Return the body. Raises BodyTooLargeError, BodyTooSlowError, BodyBudgetError, ClientDisconnectedError."""
        declared = headers.get(b"content-length", b"")
        if declared.isdigit() and (len(declared) > 19 or int(declared) > limit):
            raise BodyTooLargeError
        task = asyncio.current_task()
        assert task is not None
        self._slow.watch(task)
        try:
            if self._least:
                return await self._read_counted(principal, task, None, receive, limit)
            first, more = _read_part(await receive())
            if not more and len(first) <= SMALL:
                return Body(first)
            return await self._read_counted(principal, task, (first, more), receive, limit)
        except asyncio.CancelledError:
            if self._slow.release(task):
                raise BodyTooSlowError from None
            raise
        finally:
            self._slow.release(task)

    async def _read_counted(
        self,
        principal: str,
        task: "asyncio.Task[object]",
        first: tuple[bytes, bool] | None,
        receive: Receive,
        limit: int,
    ) -> Body:
        """Return a body, or its rest after the `first` part, counted as it arrives. Until it is complete, other bodies
        may evict it."""
        claim = self._budget.claim(principal)
        ended: list[bool] = []

        def end() -> None:
            ended.append(True)
            task.cancel()

        claim.offer(end)
        parts: list[bytes] = []
        size = 0
        try:
            claim.grow(self._least)  # no room: all counted bodies are being handled, so a small one may pass
            while True:
                part, more = first or _read_part(await receive())
                first = None
                size += len(part)
                if size > limit:
                    raise BodyTooLargeError
                if not more and not parts and size <= SMALL:
                    claim.release()
                    return Body(part)
                if not claim.grow(max(0, size - claim.amount)):
                    raise BodyBudgetError
                parts.append(part)
                if not more:
                    claim.withdraw()
                    claim.shrink(claim.amount - size)
                    return Body(b"".join(parts), claim)
        except BaseException as error:
            claim.release()
            if ended and isinstance(error, asyncio.CancelledError) and task.uncancel() == 0:
                raise BodyBudgetError from None
            raise


def _read_part(message: Message) -> tuple[bytes, bool]:
    """Return the part, and whether more follows. Raises ClientDisconnectedError."""
    if message["type"] == "http.disconnect":
        raise ClientDisconnectedError
    part: bytes = message.get("body", b"")
    return part, bool(message.get("more_body"))

"""Read the body of an HTTP request: limited in size, in time, and by what all bodies of one sender hold together."""

import asyncio
from dataclasses import dataclass

from toolgate.server.budget import Budget, Claim
from toolgate.server.protocol.asyncio_tasks import DeadlineTimer
from toolgate.transports.http.asgi import Headers, Receive, Send, refuse

MAX_BODY = 16 * 2**20  # bytes: an 8 MiB message in base64 and its envelope
MAX_BODIES = 64 * 2**20  # bytes of one principal's, from the first byte until their work is done: four of those
MAX_ALL_BODIES = 128 * 2**20  # bytes of everybody's: each is in memory twice while it is decoded
SMALL = 4 * 1024  # bytes of a body that is not counted where it comes at once: nearly all are smaller
BODY_TIME = 30.0  # seconds for a whole body


class BodyTooLargeError(Exception):
    """More than MAX_BODY bytes: 413."""


class BodyTooSlowError(Exception):
    """It did not come in time: 408."""


class BodyBudgetError(Exception):
    """The bodies of this sender, or of all, hold what they may: 503."""


class ClientDisconnectedError(Exception):
    """The client hung up before its body was complete."""


@dataclass(frozen=True, slots=True)
class Body:
    """`claim` is what it holds of the budget; None for a small one that came at once."""

    data: bytes
    claim: Claim | None = None


def is_json(headers: Headers) -> bool:
    """Whether the body says that it is JSON, and not packed: nothing is unpacked here, so it can't be a bomb either."""
    kind = headers.get(b"content-type", b"").partition(b";")[0].strip().lower()
    return kind == b"application/json" and headers.get(b"content-encoding", b"identity").lower() == b"identity"


class BodyReader:
    """Reads bodies within `slow` seconds each; what they hold together is in `budget`, by who sends them. One that has
    not come yet counts for `least` bytes: its connection is in use, however little of it there is."""

    def __init__(self, budget: Budget, slow: float = BODY_TIME, *, least: int = 0) -> None:
        self._budget = budget
        self._least = least
        self._slow = DeadlineTimer(slow)

    async def read_or_refuse(self, principal: str, headers: Headers, receive: Receive, send: Send) -> Body | None:
        """Return the body, or None when the request has been refused or its client has hung up."""
        try:
            return await self.read(principal, headers, receive)
        except BodyTooLargeError:  # the rest is read and thrown away, or the client would not see why
            await refuse(send, 413, f"more than {MAX_BODY} bytes")
        except BodyTooSlowError:
            await refuse(send, 408, "the body did not come in time", [(b"connection", b"close")])
        except BodyBudgetError:
            await refuse(
                send, 503, "too much is being sent at once", [(b"connection", b"close"), (b"retry-after", b"1")]
            )
        except ClientDisconnectedError:
            pass
        return None

    async def read(self, principal: str, headers: Headers, receive: Receive, *, limit: int = MAX_BODY) -> Body:
        """The body. Raises TooLarge, TooSlow, TooMany, Gone."""
        declared = headers.get(b"content-length", b"")
        if declared.isdigit() and (len(declared) > 19 or int(declared) > limit):
            raise BodyTooLargeError
        task = asyncio.current_task()
        assert task is not None
        self._slow.watch(task)
        try:
            if self._least:
                return await self._read_counted(principal, task, None, receive, limit)
            first, more = await _receive_part(receive)
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
        """A body, or its rest after the `first` part, counted as it comes. For others it ends before it is whole, and
        not after that."""
        claim = self._budget.claim(principal)
        ended: list[bool] = []

        def end() -> None:
            ended.append(True)
            task.cancel()

        claim.offer(end)
        parts: list[bytes] = []
        size = 0
        try:
            claim.grow(self._least)  # no room: those that came are being handled, and a small one is all the same
            while True:
                part, more = first or await _receive_part(receive)
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


async def _receive_part(receive: Receive) -> tuple[bytes, bool]:
    """What came, and whether there is more to come. Raises Gone."""
    message = await receive()
    if message["type"] == "http.disconnect":
        raise ClientDisconnectedError
    part: bytes = message.get("body", b"")
    return part, bool(message.get("more_body"))

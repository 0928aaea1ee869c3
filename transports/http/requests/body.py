"""Read the body of an HTTP request, limited in size, and in memory per sender. The connection limits its time."""

import asyncio

import msgspec

from toolgate.server.base.limits.budget import Budget, Claim
from toolgate.transports.http.wire.body import BodyTooSlowError
from toolgate.transports.http.wire.request import HttpRequest, WholeResponse, refuse

MAX_BODY = 16 * 2**20  # bytes: an 8 MiB message in base64 and its envelope
MAX_BODIES = 64 * 2**20  # bytes of one principal's bodies, until their work is done: four of the largest
MAX_ALL_BODIES = 128 * 2**20  # bytes of all bodies: each is in memory twice while it is decoded
SMALL = 4 * 1024  # bytes of a body that is not counted if it came with its head: nearly all are smaller


class BodyTooLargeError(Exception):
    """The body is larger than MAX_BODY: 413."""


class BodyBudgetError(Exception):
    """The bodies of this sender, or of all, use up their budget: 503."""


class Body(msgspec.Struct, frozen=True):
    """A request's body. `claim` is its part of the budget, or None for a small one that came at once."""

    data: bytes
    claim: Claim | None = None


class BodyReader:
    """Reads bodies within a memory `budget` per sender. An incomplete body counts as at least `least` bytes, since it
    occupies its connection."""

    def __init__(self, budget: Budget, *, least: int = 0) -> None:
        self._budget = budget
        self._least = least

    async def read_or_refuse(self, principal: str, request: HttpRequest) -> Body | WholeResponse:
        """Return the body, or the answer that refuses the request. Raises ClientDisconnectedError."""
        try:
            return await self.read(principal, request)
        except BodyTooLargeError:
            return refuse(413, f"the body has more than {MAX_BODY} bytes")
        except BodyTooSlowError:
            return refuse(408, "the body did not arrive in time", closes=True)
        except BodyBudgetError:
            text = "too much data is being sent at once: try again later"
            return refuse(503, text, [(b"retry-after", b"1")], closes=True)

    async def read(self, principal: str, request: HttpRequest, *, limit: int = MAX_BODY) -> Body:
        """Return the body.

        Raises BodyTooLargeError, BodyTooSlowError, BodyBudgetError, ClientDisconnectedError.
        """
        length = request.head.length
        if length is not None and length > limit:
            raise BodyTooLargeError
        data = request.take_body(min(SMALL, limit))
        if data is not None:
            return Body(data)
        claim = self._budget.claim(principal)
        task = asyncio.current_task()
        assert task is not None
        ended: list[bool] = []

        def end() -> None:
            ended.append(True)
            task.cancel()

        claim.offer(end)
        try:
            claim.grow(self._least)  # no room: all counted bodies are being handled, so a small one may pass
            data = await _read_counted(request, claim, limit)
        except BaseException as error:
            claim.release()
            if ended and isinstance(error, asyncio.CancelledError) and task.uncancel() == 0:
                raise BodyBudgetError from None
            raise
        claim.withdraw()
        claim.shrink(claim.amount - len(data))
        return Body(data, claim)


async def _read_counted(request: HttpRequest, claim: Claim, limit: int) -> bytes:
    """Return a body, counted as it arrives. Until it is complete, other bodies may evict it."""
    parts: list[bytes] = []
    size, more = 0, True
    while more:
        part, more = await request.read()
        size += len(part)
        if size > limit:
            raise BodyTooLargeError
        if not claim.grow(max(0, size - claim.amount)):
            raise BodyBudgetError
        parts.append(part)
    return b"".join(parts)

"""Bound what a client leaves unread: it counts against a principal, and the writers of answers wait."""

import asyncio
from collections.abc import Callable

from toolgate.server.base.limits.budget import Budget, Claim


class UnreadAnswers:
    """What one client has still to read. `is_late`: it leaves more than the transport takes."""

    __slots__ = ("_budget", "_claim", "_readable", "is_late")

    def __init__(self, budget: Budget) -> None:
        self.is_late = False
        self._budget = budget
        self._claim: Claim | None = None
        self._readable: asyncio.Future[None] | None = None  # of the writers that wait

    def begin(self, principal: str, size: int, disconnect: Callable[[], None]) -> None:
        """Note that the client is late. `disconnect` is called if there is no room for `size` bytes, or none is left.

        The whole answer counts until it is nearly sent: its last part is small.
        """
        self.is_late = True
        if self._claim is None:
            self._claim = self._budget.take(principal, size, disconnect)
            if self._claim is None:
                disconnect()

    def end(self) -> None:
        """Note that the client has read nearly all, or is gone."""
        self.is_late = False
        claim, self._claim = self._claim, None
        if claim is not None:
            claim.release()
        readable, self._readable = self._readable, None
        if readable is not None:
            readable.set_result(None)

    async def wait(self) -> None:
        """Wait until the client has read most of what was sent, or has gone."""
        if self.is_late:
            self._readable = self._readable or asyncio.get_running_loop().create_future()
            await asyncio.shield(self._readable)

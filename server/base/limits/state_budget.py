"""Bound how long one call waits for the state: all of its reads and transactions share one budget.

The budget is a context variable, so the tasks of a call share it. Work that outlives its call has none.
"""

import asyncio
import time
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from contextvars import ContextVar

SECONDS = 2.5  # of one call: with what else it does, the call ends within 3 seconds
ORDINARY = 0.05  # seconds: a shorter wait costs nothing, as a call may do thousands of quick writes
REFILL = 10.0  # seconds without a slow wait, after which the budget is whole: a stream lasts for hours


class StateBudget:
    """The seconds that one call may still wait for the state. `clock` returns seconds that no setting changes."""

    __slots__ = ("_clock", "_seconds", "_spent", "_spent_at", "_users", "is_closed")

    def __init__(self, seconds: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._seconds = seconds
        self._clock = clock
        self._spent = 0.0
        self._spent_at = float("-inf")
        self._users = 0
        self.is_closed = False

    def remaining(self) -> float:
        """Return the seconds that the next wait may last."""
        if self._clock() - self._spent_at > REFILL:
            self._spent = 0.0
        return max(0.0, self._seconds - self._spent)

    def spend(self, began: float) -> None:
        """Count a wait since `began`, by the clock. What waits at the same time counts once."""
        now = self._clock()
        if now - began > ORDINARY:
            self._spent += now - max(began, self._spent_at)
            self._spent_at = now

    def enter(self) -> None:
        """Count one more message that is answered within the budget."""
        self._users += 1

    def leave(self) -> None:
        """Close the budget after the last message, so that it does not bound what goes on."""
        self._users -= 1
        self.is_closed = self._users == 0


_CURRENT: ContextVar[StateBudget | None] = ContextVar("state budget", default=None)


def current_budget() -> StateBudget | None:
    """Return the budget of the call that this code runs in, or None."""
    budget = _CURRENT.get()
    return None if budget is None or budget.is_closed else budget


def start_budget() -> None:
    """Give the code that follows in this context a budget of its own, as for an HTTP request."""
    _CURRENT.set(StateBudget(SECONDS))


def enter_call() -> StateBudget:
    """Bound the waits of one message by the budget of its HTTP request, or else by a new one. Call `leave` after it."""
    budget = current_budget()
    if budget is None:
        budget = StateBudget(SECONDS)
        _CURRENT.set(budget)
    budget.enter()
    return budget


@asynccontextmanager
async def bounded_wait(seconds: float) -> AsyncGenerator[None]:
    """Bound a wait for the state by `seconds`, and by the budget of the call. Raises TimeoutError."""
    budget = current_budget()
    if budget is None:
        async with asyncio.timeout(seconds):
            yield
        return
    began = time.monotonic()
    try:
        async with asyncio.timeout(min(seconds, budget.remaining())):
            yield
    finally:
        budget.spend(began)

"""Close what nothing has used for a while."""

import asyncio
from collections.abc import Callable

SOON = 1.0  # seconds until what is not needed any more is looked at again


class IdleTimer:
    """Calls `close` when nothing has used a thing for `seconds`, and it is not busy then. 0 seconds: never.

    A busy thing is looked at again after as long.
    """

    def __init__(self, seconds: float, is_busy: Callable[[], bool], close: Callable[[], None]) -> None:
        self._seconds = seconds
        self._is_busy = is_busy
        self._close = close
        self._used_at = 0.0
        self._pause = seconds
        self._timer: asyncio.TimerHandle | None = None

    def note_use(self) -> None:
        loop = asyncio.get_running_loop()
        self._used_at, self._pause = loop.time(), self._seconds
        if self._timer is None and self._seconds:
            self._timer = loop.call_later(self._seconds, self._check)

    def hurry(self) -> None:
        """Close as soon as it is not busy, unless it is used before."""
        if self._seconds:
            self.cancel()
            self._pause = min(SOON, self._seconds)
            self._timer = asyncio.get_running_loop().call_later(self._pause, self._check)

    def cancel(self) -> None:
        """Close nothing until the next use."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _check(self) -> None:
        loop = asyncio.get_running_loop()
        due = self._used_at + self._pause
        if self._is_busy():
            self._pause = min(2 * self._pause, self._seconds)
            self._timer = loop.call_later(self._pause, self._check)
        elif loop.time() < due:
            self._timer = loop.call_at(due, self._check)
        else:
            self._timer = None
            self._close()

"""End sandboxes in which nothing runs: after a while, and when there are too many."""

import asyncio
from typing import Protocol

IDLE = 600.0  # seconds after the last of its processes that a sandbox ends, and its /tmp with it
MOST = 32  # of a server: each holds some 20 MiB, and what is in its /tmp


class Retirable(Protocol):
    def retire(self) -> None: ...


class IdleSandboxes:
    """The one that has rested longest makes room for another."""

    def __init__(self, most: int = MOST, seconds: float = IDLE) -> None:
        self._most = most
        self._seconds = seconds
        self._timers: dict[Retirable, asyncio.TimerHandle] = {}  # who has rested longest comes first

    def add(self, one: Retirable) -> None:
        """Nothing runs there any more."""
        self.remove(one)
        self._timers[one] = asyncio.get_running_loop().call_later(self._seconds, self._retire, one)
        if len(self._timers) > self._most:
            self._retire(next(iter(self._timers)))

    def remove(self, one: Retirable) -> None:
        """Something runs there again, or it is gone."""
        timer = self._timers.pop(one, None)
        if timer is not None:
            timer.cancel()

    def _retire(self, one: Retirable) -> None:
        self.remove(one)
        one.retire()

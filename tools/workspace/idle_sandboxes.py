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

    def add(self, sandbox: Retirable) -> None:
        """Nothing runs there any more."""
        self.remove(sandbox)
        self._timers[sandbox] = asyncio.get_running_loop().call_later(self._seconds, self._retire, sandbox)
        if len(self._timers) > self._most:
            self._retire(next(iter(self._timers)))

    def remove(self, sandbox: Retirable) -> None:
        """Something runs there again, or it is gone."""
        timer = self._timers.pop(sandbox, None)
        if timer is not None:
            timer.cancel()

    def _retire(self, sandbox: Retirable) -> None:
        self.remove(sandbox)
        sandbox.retire()

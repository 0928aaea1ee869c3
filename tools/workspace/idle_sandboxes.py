"""Keep the sandboxes in which nothing runs for a while, and end the longest idle one of too many."""

import asyncio
from typing import Protocol

IDLE = 600.0  # seconds after its last command that a sandbox ends, and its /tmp with it
MOST = 32  # of a server: each holds some 20 MiB, and its /tmp


class Retirable(Protocol):
    def retire(self) -> None: ...


class IdleSandboxes:
    """The idle sandboxes. When there are too many, the longest idle one ends."""

    def __init__(self, most: int = MOST, seconds: float = IDLE) -> None:
        self._most = most
        self._seconds = seconds
        self._timers: dict[Retirable, asyncio.TimerHandle] = {}  # the longest idle first

    def add(self, sandbox: Retirable) -> None:
        """Add a sandbox in which no command runs any more."""
        self.remove(sandbox)
        self._timers[sandbox] = asyncio.get_running_loop().call_later(self._seconds, self._retire, sandbox)
        if len(self._timers) > self._most:
            self._retire(next(iter(self._timers)))

    def remove(self, sandbox: Retirable) -> None:
        """Remove a sandbox that runs a command again, or has ended."""
        timer = self._timers.pop(sandbox, None)
        if timer is not None:
            timer.cancel()

    def _retire(self, sandbox: Retirable) -> None:
        self.remove(sandbox)
        sandbox.retire()

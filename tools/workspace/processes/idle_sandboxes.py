"""Keep the sandboxes in which nothing runs for a while, and end the longest idle one of too many."""

import asyncio
from typing import Protocol

MOST = 32  # of a server: each holds some 20 MiB, and its /tmp


class Retirable(Protocol):
    def retire(self) -> None: ...


class IdleSandboxes:
    """The idle sandboxes. Each ends after `seconds` (0 is never). Of too many, the longest idle one ends."""

    def __init__(self, most: int = MOST, seconds: float = 0.0) -> None:
        self._most = most
        self._seconds = seconds
        self._timers: dict[Retirable, asyncio.TimerHandle | None] = {}  # the longest idle first

    def add(self, sandbox: Retirable) -> None:
        """Add a sandbox in which no command runs any more."""
        self.remove(sandbox)
        loop, seconds = asyncio.get_running_loop(), self._seconds
        self._timers[sandbox] = loop.call_later(seconds, self._retire, sandbox) if seconds else None
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

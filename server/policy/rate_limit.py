"""Limit the calls a minute of each principal: of all tools, and of the tools of one scope. Counts live in memory."""

import time
from collections.abc import Callable, Iterator, Mapping

from toolgate.server.policy.sliding_window import SPAN, SlidingWindow

ANY = ""  # the key of the limit on all calls


class CallRateLimiter:
    """`most` is scope → calls in any sixty seconds, `ANY` for all together; 0, or a scope that is not there, is no
    limit. `now` is in seconds and never set back."""

    def __init__(self, most: Mapping[str, int], now: Callable[[], float] = time.monotonic) -> None:
        self._most = {scope: limit for scope, limit in most.items() if limit}
        self._now = now
        self._minutes: dict[tuple[str, str], SlidingWindow] = {}  # by principal and scope: of those who called lately
        self._swept = now()

    def count(self, principal: str, scope: str = ANY) -> str | None:
        """Count a call; or say why it is one too many, and count nothing."""
        now = self._now()
        self._sweep(now)
        held = list(self._windows_of(principal, scope))
        waits = [(minute.wait(now, self._most[key]), key) for key, minute in held]
        wait, key = max(waits, default=(0, ANY))
        if wait:
            of = f"calls of {key}" if key else "calls"
            return f"{self._most[key]} {of} in a minute are allowed; try again in {wait} s"
        for _, minute in held:
            minute.add(now)
        return None

    def __len__(self) -> int:
        """How many minutes are held."""
        return len(self._minutes)

    def _windows_of(self, principal: str, scope: str) -> Iterator[tuple[str, SlidingWindow]]:
        for key in (ANY, scope) if scope else (ANY,):
            if key not in self._most:
                continue
            minute = self._minutes.get((principal, key))
            if minute is None:
                minute = self._minutes[principal, key] = SlidingWindow()
            yield key, minute

    def _sweep(self, now: float) -> None:
        """Forget who has not called for a minute, once a minute."""
        if now - self._swept > SPAN:
            self._swept = now
            self._minutes = {key: minute for key, minute in self._minutes.items() if not minute.is_over(now)}

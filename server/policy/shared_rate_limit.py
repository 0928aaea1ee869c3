"""Limit each principal's calls a minute over all replicas. While Redis is away each replica counts for itself."""

import asyncio
import logging
import math
from collections.abc import Mapping

from toolgate.server.bus.bus import Bus, BusUnreachableError, KeyLimit
from toolgate.server.policy.rate_limit import ANY, SPAN, CallRateLimiter, format_refusal

PATIENCE = 0.25  # seconds that a call waits for Redis: after a second its answer would be a stream

log = logging.getLogger("toolgate")


class SharedRateLimiter:
    """Count calls by keys of the bus, in one round trip. `most` is as for `local`, which counts without Redis.

    A minute begins with its first call, so up to twice as many may come around its end.
    """

    def __init__(self, most: Mapping[str, int], local: CallRateLimiter, bus: Bus) -> None:
        self._most = {scope: limit for scope, limit in most.items() if limit}
        self._local = local
        self._bus = bus

    async def count(self, principal: str, scope: str = ANY) -> str | None:
        """Count a call, or return why it is refused, without counting it."""
        scopes = [each for each in dict.fromkeys((ANY, scope)) if each in self._most]
        if not scopes:
            return None
        if not self._bus.health().is_reachable:  # no call waits for a reconnect
            return self._local.count(principal, scope)
        limits = [KeyLimit(f"calls {principal} {each}", self._most[each], SPAN) for each in scopes]
        try:
            async with asyncio.timeout(PATIENCE):
                wait = await self._bus.keys.count(limits)
            if not wait:
                return None
            counts = await self._bus.keys.get_many([limit.key for limit in limits])
        except (BusUnreachableError, TimeoutError) as error:
            log.warning("calls are counted by this process alone: %s", error or "Redis is slow")
            return self._local.count(principal, scope)
        full = [each for each, value in zip(scopes, counts, strict=True) if int(value or 0) >= self._most[each]]
        return format_refusal(full[0] if full else scopes[-1], self._most, math.ceil(wait))

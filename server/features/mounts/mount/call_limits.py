"""Keep what one person may do with a mount: calls in a minute, and calls at once."""

import contextlib
from collections import Counter
from collections.abc import AsyncGenerator

from toolgate.server.base.limits.rate_limit import ANY, CallRateLimiter
from toolgate.server.features.mounts.config.mount_config import MountLimits
from toolgate.server.features.mounts.upstream.errors import MountError


class MountCallLimits:
    """The limits of one mount, counted in this process."""

    def __init__(self, limits: MountLimits) -> None:
        self._rate = CallRateLimiter({ANY: limits.calls}) if limits.calls else None
        self._most = limits.at_once
        self._running: Counter[str] = Counter()

    @contextlib.asynccontextmanager
    async def count(self, principal: str, *, is_new: bool = True) -> AsyncGenerator[None]:
        """Count a call as long as it is under way; one that comes back with an answer is no new one. Raises
        MountError."""
        if self._most and self._running[principal] >= self._most:
            raise MountError("LIMITED", f"more than {self._most} at once: wait for one of your calls")
        if is_new and self._rate is not None and (why := await self._rate.admit(principal)) is not None:
            raise MountError("LIMITED", why)
        self._running[principal] += 1
        try:
            yield
        finally:
            self._running[principal] -= 1
            if not self._running[principal]:
                del self._running[principal]

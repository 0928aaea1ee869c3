"""Have calls wait for a sign-in at the mounted server, and look again at what holds before they go on."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Protocol

from toolgate.server.features.mounts.mount.pool import CLOSED
from toolgate.server.features.mounts.upstream.errors import UpstreamFault
from toolgate.tools.api.context.context import Context

CONNECT_METHOD = "connect"  # none of the protocol: a person connects, and nothing is asked for
KINDS = {"tools/call": "tools", "prompts/get": "prompts", "resources/read": "resources", CONNECT_METHOD: ""}
SIGN_IN_QUESTION = "mounted-sign-in"  # names the one of a sign-in; no mounted server's own has this name

PartCheck = Callable[[str, str, Context], Awaitable[None]]


class SignInWait(Protocol):
    """Has people sign in at the mounted server while their calls wait."""

    @property
    def has_page(self) -> bool:
        """Whether there is a page where people sign in."""
        ...

    async def wait(self, refusal: UpstreamFault, context: Context) -> None:
        """Return once the person of a call that was refused has signed in. Raises the refusal where that does not
        happen, and what asking the client raises."""
        ...


class SignInWaits:
    """The calls of one mount that wait. `check(kind, original, context)` raises the refusal of a part that its caller
    may not use now."""

    def __init__(self, sign_in: SignInWait, check: PartCheck) -> None:
        self._sign_in = sign_in
        self._check = check
        self._limits: set[asyncio.Timeout] = set()
        self._is_closed = False

    @property
    def has_page(self) -> bool:
        """Whether there is a page where people sign in."""
        return self._sign_in.has_page

    async def wait(self, refusal: UpstreamFault, method: str, original: str, context: Context) -> None:
        """Return once the call may be sent again. Raises as `SignInWait.wait`, and what forbids the call since."""
        if self._is_closed:
            raise CLOSED.create_error().as_decision("closed")
        limit = asyncio.timeout(None)
        try:
            async with limit:
                self._limits.add(limit)
                try:
                    await self._sign_in.wait(refusal, context)
                finally:
                    self._limits.discard(limit)
        except TimeoutError:
            if not limit.expired():
                raise
            raise CLOSED.create_error().as_decision("closed") from None
        await self._check(KINDS[method], original, context)

    def close(self) -> None:
        """End the waits: the mount is served no longer."""
        self._is_closed = True
        limits, self._limits = self._limits, set()
        for limit in limits:
            limit.reschedule(asyncio.get_running_loop().time())

"""Have calls wait for a sign-in at the mounted server, and look again at what holds before they go on."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Protocol

from toolgate.server.calls.client import InputRequired
from toolgate.server.features.mounts.mount.pool import CLOSED
from toolgate.server.features.mounts.upstream.errors import UpstreamFault
from toolgate.tools.api.context.context import Context

CONNECT = "connect"  # no method of the protocol: a person connects, and nothing is asked for
KINDS = {"tools/call": "tools", "prompts/get": "prompts", "resources/read": "resources", CONNECT: ""}  # of what asks
SIGN_IN_QUESTION = "mounted-sign-in"  # names the one of a sign-in; no mounted server's own has this name
MAX_CONTINUED = 1_000  # calls that are known to have gone on

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

    async def recall_begin(self, context: Context) -> float | None:
        """Return when an earlier try of the call began to wait, or None."""
        ...


class SignInWaits:
    """The calls of one mount that wait. `check(kind, original, context)` raises the refusal of a part that its caller
    may not use now."""

    def __init__(self, sign_in: SignInWait, check: PartCheck) -> None:
        self._sign_in = sign_in
        self._check = check
        self._limits: set[asyncio.Timeout] = set()
        self._continued: dict[tuple[str, float], None] = {}  # by principal and begin, the latest last
        self._is_closed = False

    @property
    def has_page(self) -> bool:
        """Whether there is a page where people sign in."""
        return self._sign_in.has_page

    async def continues(self, context: Context) -> bool:
        """Return whether this try goes on with a call that waits. Whoever sends the state of one twice makes a new
        call."""
        if not context.knows("stateless") or (began := await self._sign_in.recall_begin(context)) is None:
            return False
        key = context.principal, began
        if key in self._continued:
            return False
        if len(self._continued) >= MAX_CONTINUED:
            del self._continued[next(iter(self._continued))]
        self._continued[key] = None
        return True

    async def wait(self, refusal: UpstreamFault, method: str, original: str, context: Context) -> None:
        """Return once the call may be sent again. Raises as `SignInWait.wait`, and what forbids the call since."""
        if self._is_closed:
            raise CLOSED.create_error()
        limit = asyncio.timeout(None)
        try:
            async with limit:
                self._limits.add(limit)
                try:
                    await self._sign_in.wait(refusal, context)
                except InputRequired:
                    await self._await_next(context)
                    raise
                finally:
                    self._limits.discard(limit)
        except TimeoutError:
            if not limit.expired():
                raise
            raise CLOSED.create_error() from None
        await self._check(KINDS[method], original, context)

    async def _await_next(self, context: Context) -> None:
        """Take the next try of a call for the same call."""
        began = await self._sign_in.recall_begin(context)
        if began is not None:
            self._continued.pop((context.principal, began), None)

    def close(self) -> None:
        """End the waits: the mount is served no longer."""
        self._is_closed = True
        limits, self._limits = self._limits, set()
        for limit in limits:
            limit.reschedule(asyncio.get_running_loop().time())

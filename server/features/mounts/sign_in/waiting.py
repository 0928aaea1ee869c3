"""Hold what the calls that wait for one sign-in share, and how long each may wait."""

import asyncio
import time
from collections.abc import Callable
from typing import Any

from toolgate.server.calls.client import InputRequired
from toolgate.server.features.mounts.mount.forwarded_request import recall
from toolgate.server.features.mounts.sign_in.arrivals import SignInNeed
from toolgate.server.features.mounts.upstream.errors import MountError, UpstreamFault
from toolgate.tools.api.context.context import Context

ASKED = "mounted-sign-in-asked"  # what later tries of the call know
ACCEPT, UNANSWERED = "accept", "unanswered"
OUTCOMES = {
    "decline": "the person was asked, and declined",
    "cancel": "the person was asked, and closed the question",
    UNANSWERED: "the client was asked to show the link, and did not",
}


class SignInQuestion:
    """What one session is asked. `answer`: its action, or "" if the call that asked is gone; `is_asking`: that call
    waits for it; `waiting`: how many calls wait; `until`: when a client is back at the latest, by the loop's clock."""

    def __init__(self) -> None:
        self.answer: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self.is_asking = False
        self.waiting = 0
        self.until = 0.0

    @property
    def is_open(self) -> bool:
        """Whether another call need not ask."""
        if self.answer.done():
            return self.answer.result() == ACCEPT and (self.waiting > 0 or self.seconds_left > 0)
        return self.is_asking or self.seconds_left > 0

    @property
    def seconds_left(self) -> float:
        return self.until - asyncio.get_running_loop().time()

    def keep(self, seconds: float) -> None:
        """Wait so long for a client to come back."""
        self.until = asyncio.get_running_loop().time() + seconds

    def settle(self, action: str) -> None:
        if not self.answer.done():
            self.answer.set_result(action)


class WaitingCall:
    """One call that waits. `request`: what its client may be asked; `until`: when it ends without a connection, by the
    clock of the state."""

    def __init__(
        self,
        context: Context,
        refusal: UpstreamFault,
        request: dict[str, Any],
        need: SignInNeed,
        until: float,
        now: Callable[[], float],
    ) -> None:
        self.context = context
        self.request = request
        self._refusal = refusal
        self.need = need
        self._until = until
        self._now = now
        self._began = time.monotonic()

    @property
    def seconds_left(self) -> float:
        """The seconds that this try may wait."""
        left = self._until - self._now()
        hold = self.context.hold
        return max(0.0, left if hold is None else min(left, self._began + hold - time.monotonic()))

    async def has_asked(self) -> bool:
        """Return whether an earlier try has asked. Raises the refusal if the person has signed in since then: that was
        not enough."""
        before = await recall(self.context, ASKED)
        if before not in (None, self.need.made_at):
            raise self._refusal.create_error()
        return before is not None

    async def note_asked(self) -> None:
        async def find_made_at() -> float:
            return self.need.made_at

        await self.context.once(ASKED, find_made_at)

    @property
    def comes_back(self) -> bool:
        """Whether the client calls again if the request ends with its state alone."""
        return self.context.knows("stateless") and self.context.hold is not None

    def refuse(self, action: str) -> MountError:
        """Return the error of a call whose person did not agree."""
        return MountError(self._refusal.code, f"{self._refusal.sentence} ({OUTCOMES[action]})")

    def put_off(self) -> BaseException:
        """Return what ends this try, which has waited as long as it may."""
        return InputRequired({}) if self.comes_back and self._now() < self._until else self._refusal.create_error()

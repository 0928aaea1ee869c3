"""Keep the conversations of one mount: each is opened when it is needed, shared as `per` says, and ended when idle."""

import asyncio
import contextlib
import time
from collections.abc import Callable, Coroutine, Hashable
from typing import Any

import msgspec

from toolgate.server.features.mounts.mount.profile import ClientProfile
from toolgate.server.features.mounts.upstream.errors import MountError, UpstreamFault
from toolgate.server.features.mounts.upstream.session import UpstreamSession

IDLE = 600.0  # seconds without a call, after which a conversation is ended
SWEEP = 30.0  # seconds between two looks for idle ones
MAX_OF_PRINCIPAL = 32  # conversations; the one that was used longest ago ends
CLOSED = UpstreamFault("CONNECT_FAILED", "it was removed or changed here meanwhile: list what is served, and try again")


class SessionKey(msgspec.Struct, frozen=True):
    """Who shares a conversation: nobody whose key differs. `scopes`: a weaker token joins no stronger one's."""

    principal: str
    profile: ClientProfile
    session: str = ""
    scopes: frozenset[str] | None = None


class HeldSession:
    """One conversation, being opened or open, and the secrets that it is opened with."""

    def __init__(self, opening: "asyncio.Task[UpstreamSession]", secrets: Hashable) -> None:
        self.opening = opening
        self.secrets = secrets
        self.used = time.monotonic()

    @property
    def session(self) -> UpstreamSession | None:
        """The open conversation."""
        if not self.opening.done() or self.opening.cancelled() or self.opening.exception() is not None:
            return None
        return self.opening.result()

    @property
    def is_usable(self) -> bool:
        return not self.opening.done() or (self.session is not None and self.session.is_alive)


class SessionPool:
    """The conversations by their keys. `open_session(key, …)` opens one, and gets what `get` was given."""

    def __init__(self, open_session: Callable[[SessionKey, Any], Coroutine[Any, Any, UpstreamSession]]) -> None:
        self._open = open_session
        self._held: dict[SessionKey, HeldSession] = {}
        self._outdated: list[tuple[SessionKey, HeldSession]] = []  # whose calls may end, and which get no other
        self._endings: set[asyncio.Task[None]] = set()
        self._sweeping: asyncio.Task[None] | None = None
        self.is_closed = False

    def list_running(self) -> list[tuple[SessionKey, UpstreamSession]]:
        """Return the open conversations."""
        found = ((key, held.session) for key, held in self._held.items())
        return [(key, session) for key, session in found if session is not None and session.is_alive]

    def has(self, key: SessionKey, secrets: Hashable = None) -> bool:
        """Return whether there is such a conversation with these secrets, or one is being opened."""
        held = self._held.get(key)
        return held is not None and held.is_usable and held.secrets == secrets

    def find_latest(self, key: SessionKey) -> SessionKey:
        """Return the key of the principal's conversation that was used last, or `key` if there is none. A subscription
        names no client, and what is subscribed to may be known in one conversation only."""
        own = [(held.used, other) for other, held in self._held.items() if other.principal == key.principal]
        return max(own, key=lambda row: row[0])[1] if own else key

    async def get(self, key: SessionKey, secrets: Hashable = None) -> UpstreamSession:
        """Return the conversation, opened if there is none that lives and has these secrets. Raises MountError."""
        if self.is_closed:
            raise CLOSED.create_error()
        held = self._held.get(key)
        if held is None or not self.has(key, secrets):
            if held is not None:
                self._outdated.append((key, self._held.pop(key)))
                self._end_outdated()
            held = self._start(key, secrets)
        held.used = time.monotonic()
        try:
            return await asyncio.shield(held.opening)
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if held.opening.cancelled() and task is not None and not task.cancelling():  # we were not
                raise MountError("CONNECT_FAILED", "its conversations were ended while one began") from None
            raise

    def outdate(self, principal: str) -> None:
        """Give a principal's conversations no other call, and end them once theirs have ended."""
        for key in [key for key in self._held if key.principal == principal]:
            self._outdated.append((key, self._held.pop(key)))
        self._end_outdated()

    def end(self, is_over: Callable[[SessionKey], bool]) -> None:
        """End the conversations whose keys are over."""
        for key in [key for key in self._held if is_over(key)]:
            self._end(self._held.pop(key))
        for outdated in [row for row in self._outdated if is_over(row[0])]:
            self._outdated.remove(outdated)
            self._end(outdated[1])

    def end_unused(self, is_over: Callable[[SessionKey], bool], seconds: float) -> None:
        """End those of such keys that are idle, and were not used for so long."""
        until = time.monotonic() - seconds
        self.end(lambda key: is_over(key) and self._held[key].used <= until and self._is_idle(self._held[key]))

    async def close(self) -> None:
        """End all of them, and open no others."""
        self.is_closed = True
        if self._sweeping is not None:
            self._sweeping.cancel()
        for held in (*self._held.values(), *(held for _, held in self._outdated)):
            self._end(held)
        self._held, self._outdated = {}, []
        if self._endings:
            await asyncio.wait(self._endings)

    def _start(self, key: SessionKey, secrets: Hashable) -> HeldSession:
        self._make_room(key.principal)
        opening = asyncio.get_running_loop().create_task(self._open(key, secrets))
        opening.add_done_callback(_retrieve)
        held = self._held[key] = HeldSession(opening, secrets)
        if self._sweeping is None or self._sweeping.done():
            self._sweeping = asyncio.get_running_loop().create_task(self._sweep())
        return held

    def _make_room(self, principal: str) -> None:
        own = [(held.used, key) for key, held in self._held.items() if key.principal == principal]
        outdated = sum(key.principal == principal for key, _ in self._outdated)
        if len(own) + outdated < MAX_OF_PRINCIPAL:
            return
        idle = [(used, key) for used, key in own if self._is_idle(self._held[key])]
        if not idle:
            raise MountError("BACKING_OFF", f"{MAX_OF_PRINCIPAL} conversations with it are in use: wait for one")
        _, oldest = min(idle, key=lambda row: row[0])
        self._end(self._held.pop(oldest))

    @staticmethod
    def _is_idle(held: HeldSession) -> bool:
        session = held.session
        return session is not None and session.peer.is_idle

    async def _sweep(self) -> None:
        while self._held or self._outdated:
            await asyncio.sleep(SWEEP)
            self._end_outdated()
            until = time.monotonic() - IDLE
            for key, held in list(self._held.items()):
                is_over = held.used < until and self._is_idle(held)
                if is_over or not held.is_usable:
                    self._end(self._held.pop(key))

    def _end_outdated(self) -> None:
        """End those with earlier secrets, once their calls have ended."""
        busy = [row for row in self._outdated if row[1].is_usable and not self._is_idle(row[1])]
        for row in self._outdated:
            if row not in busy:
                self._end(row[1])
        self._outdated = busy

    def _end(self, held: HeldSession) -> None:
        task = asyncio.get_running_loop().create_task(_end_session(held))
        self._endings.add(task)
        task.add_done_callback(self._endings.discard)


async def _end_session(held: HeldSession) -> None:
    held.opening.cancel()
    with contextlib.suppress(asyncio.CancelledError, Exception):
        session = await held.opening
        await session.close()


def _retrieve(opening: "asyncio.Task[UpstreamSession]") -> None:
    """Mark the error as retrieved: whoever waited for it may be gone."""
    if not opening.cancelled():
        opening.exception()

"""Say when a person's connection to one mount can be used, at whichever server it was made."""

import asyncio
import contextlib
from collections.abc import Callable, Generator

import msgspec

from toolgate.server.base.errors import StateError
from toolgate.server.features.mounts.sign_in.store import ConnectionStore

LOOK = 1.0  # seconds between two looks into the state: another server may make the connection


class SignInNeed(msgspec.Struct, frozen=True):
    """Why a person can't be served, in `words` after the name of the mount. `made_at`: of the connection that is not
    enough, or 0."""

    words: str
    made_at: float = 0.0


class Arrival(msgspec.Struct, eq=False):
    """The wait for one person's connection, for all calls that need it. `stop()` ends the watch for changes here."""

    looking: "asyncio.Task[None]"
    stop: Callable[[], None]
    waiting: int = 0


class ConnectionArrivals:
    """The connections of all people to one mount, whose server is named by `server`. `watch(principal, notify)` is as
    `SignInService.watch`; `note_change(principal)` is called for a connection that another server has made."""

    def __init__(
        self,
        store: ConnectionStore,
        mount: str,
        server: str,
        watch: Callable[[str, Callable[[], None]], Callable[[], None]],
        note_change: Callable[[str], None],
    ) -> None:
        self._store = store
        self._mount = mount
        self._server = server
        self._watch = watch
        self._note_change = note_change
        self._arrivals: dict[str, Arrival] = {}

    async def find_need(self, principal: str) -> SignInNeed | None:
        """Return what a person has to do before they can be served, or None if they can be. Raises StateError."""
        held = await self._store.find(principal, self._mount)
        if held is None or held.server != self._server:
            return SignInNeed("wants you to sign in")
        if held.ended or held.signed_in is None:
            return SignInNeed(f"wants you to sign in again: {held.ended}", held.made_at)
        if held.signed_in.wanted:
            return SignInNeed(f"wants more rights for this: {held.signed_in.wanted}", held.made_at)
        return None

    @contextlib.contextmanager
    def follow(self, principal: str) -> Generator["asyncio.Future[None]"]:
        """Yield what is done once the person can be served."""
        arrival = self._arrivals.get(principal)
        if arrival is None or arrival.looking.done():
            changed = asyncio.Event()
            looking = asyncio.get_running_loop().create_task(self._look(principal, changed))
            arrival = self._arrivals[principal] = Arrival(looking, self._watch(principal, changed.set))
        arrival.waiting += 1
        try:
            yield arrival.looking
        finally:
            arrival.waiting -= 1
            if not arrival.waiting:
                arrival.looking.cancel()
                arrival.stop()
                if self._arrivals.get(principal) is arrival:
                    del self._arrivals[principal]

    async def _look(self, principal: str, changed: asyncio.Event) -> None:
        """Look into the state until the person can be served."""
        is_noted = False
        while not await self._is_there(principal):
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(LOOK):
                    await changed.wait()
            is_noted = changed.is_set()
            changed.clear()
        if not is_noted:
            self._note_change(principal)

    async def _is_there(self, principal: str) -> bool:
        with contextlib.suppress(StateError):  # the next look finds it
            return await self.find_need(principal) is None
        return False

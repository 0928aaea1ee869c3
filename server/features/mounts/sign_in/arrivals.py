"""Say when a person's connection to one mount can be used, at whichever server it was made."""

import asyncio
import contextlib
from collections.abc import Callable, Iterator

import msgspec

from toolgate.server.features.mounts.sign_in.store import ConnectionStore
from toolgate.server.state.store import StateError

LOOK = 1.0  # seconds between two looks into the state: another server may make the connection
NOTED_WITHIN = 0.5  # seconds in which this server notes a connection that it has made itself


class Arrival(msgspec.Struct, eq=False):
    """The wait for one person's connection, for all calls that need it."""

    task: "asyncio.Task[None]"
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

    async def find_need(self, principal: str) -> str | None:
        """Return what a person has to do before they can be served, in words, or None if they can be."""
        try:
            held = await self._store.find(principal, self._mount)
        except StateError:
            return "wants you to sign in"
        if held is None or held.server != self._server:
            return "wants you to sign in"
        if held.ended or held.signed_in is None:
            return f"wants you to sign in again: {held.ended}"
        if held.signed_in.wanted:
            return f"wants more rights for this: {held.signed_in.wanted}"
        return None

    @contextlib.contextmanager
    def follow(self, principal: str) -> Iterator["asyncio.Future[None]"]:
        """Yield what is done once the person can be served."""
        arrival = self._arrivals.get(principal)
        if arrival is None or arrival.task.done():
            task = asyncio.get_running_loop().create_task(self._wait(principal))
            arrival = self._arrivals[principal] = Arrival(task)
        arrival.waiting += 1
        try:
            yield arrival.task
        finally:
            arrival.waiting -= 1
            if not arrival.waiting:
                arrival.task.cancel()
                if self._arrivals.get(principal) is arrival:
                    del self._arrivals[principal]

    async def _wait(self, principal: str) -> None:
        changed = asyncio.Event()
        stop = self._watch(principal, changed.set)
        try:
            await self._look(principal, changed)
        finally:
            stop()

    async def _look(self, principal: str, changed: asyncio.Event) -> None:
        """Look into the state until the person can be served."""
        is_noted = False
        while await self.find_need(principal) is not None:
            is_noted = await _is_set_within(changed, LOOK)
            changed.clear()
        if not is_noted and not await _is_set_within(changed, NOTED_WITHIN):
            self._note_change(principal)


async def _is_set_within(event: asyncio.Event, seconds: float) -> bool:
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await event.wait()
    return event.is_set()

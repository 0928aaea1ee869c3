"""Hold one mounted server: its lists, how it is, and its conversations."""

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable
from typing import Any, Protocol

import msgspec

from toolgate.server.features.mounts.config.mount_config import MountConfig
from toolgate.server.features.mounts.mount.backoff import RestartDelay
from toolgate.server.features.mounts.mount.lists import ListStore, MountLists, fetch_lists
from toolgate.server.features.mounts.mount.pool import SessionKey, SessionPool
from toolgate.server.features.mounts.mount.profile import ClientProfile
from toolgate.server.features.mounts.mount.watching import ResourceWatches
from toolgate.server.features.mounts.upstream.errors import MountError, UpstreamRefusedError
from toolgate.server.features.mounts.upstream.session import UpstreamSession

DEBOUNCE = 0.25  # seconds in which further changes of a list are awaited
CALM = 2.0  # the same for a mounted server whose lists keep changing
MAX_DELAYS = 1_000  # principals
MAX_REFRESHES = 32  # at once
MAX_FRESH = 256  # kinds of clients
CHANGES = frozenset(
    (
        "notifications/tools/list_changed",
        "notifications/prompts/list_changed",
        "notifications/resources/list_changed",
    )
)

log = logging.getLogger("toolgate.mounts")


class Opener(Protocol):
    """Opens conversations with the mounted server."""

    async def open(self, key: SessionKey, on_notice: Callable[[str, dict[str, Any]], None]) -> UpstreamSession:
        """Return a new one; `on_notice(method, params)` gets what the mounted server tells by itself. Raises
        MountError."""
        ...

    async def close(self) -> None: ...


class MountState(msgspec.Struct, frozen=True):
    """How a mount is: "configured" (nothing is known of it yet), "known" (its lists are), "running" or "failed".
    `since` is in seconds since 1970. `code` and `error` are of the last failure, or ""."""

    status: str
    since: float
    code: str = ""
    error: str = ""


class Mount:
    """One mounted server. `on_change(mount)` is called when its lists or its state differ."""

    def __init__(
        self, config: MountConfig, store: ListStore, opener: Opener, on_change: Callable[["Mount"], None]
    ) -> None:
        self.config = config
        self.store = store
        self.state = MountState("known" if store.all else "configured", time.time())
        self._opener = opener
        self._on_change = on_change
        self._pool = SessionPool(self._open)
        self._delays: dict[str, RestartDelay] = {}  # by principal: one who can't open it holds up no other
        self._fresh: set[ClientProfile] = set()  # whose lists were fetched since the start
        self._quiet_until = 0.0
        self._refreshes: dict[ClientProfile, asyncio.Task[None]] = {}
        self.watches = ResourceWatches(lambda key: self.get_session(self._pool.find_latest(key)))
        self._turn = asyncio.Lock()  # where calls come one at a time

    @property
    def name(self) -> str:
        return self.config.name

    def find_lists(self, profile: ClientProfile) -> MountLists | None:
        """Return what clients of this profile are shown, or None if it is not known yet."""
        return self.store.find(profile)

    def refresh(self, key: SessionKey, after: float = 0.0) -> "asyncio.Task[None]":
        """Fetch the lists for a profile, once for all that ask, and again until that succeeds."""
        running = self._refreshes.get(key.profile)
        if running is None and len(self._refreshes) >= MAX_REFRESHES:  # the mount is away: others wait for it already
            return next(iter(self._refreshes.values()))
        if running is None or running.done():
            running = self._refreshes[key.profile] = asyncio.get_running_loop().create_task(self._refresh(key, after))
            running.add_done_callback(lambda task: None if task.cancelled() else task.exception() and None)
        return running

    async def get_session(self, key: SessionKey) -> UpstreamSession:
        """Return an open conversation. Raises MountError."""
        left = self._delay_of(key.principal).seconds_left
        if left and not self._pool.has(key):
            raise MountError("BACKING_OFF", f"it failed a moment ago, and is tried again in {left:.0f} s")
        return await self._pool.get(key)

    def end_principal(self, principal: str) -> None:
        """End the conversations of a principal."""
        self._pool.end(lambda key: key.principal == principal)

    def end_session(self, session: str) -> None:
        """End the conversations that belong to a session of ours alone."""
        self._pool.end(lambda key: bool(session) and key.session == session)

    def take_turn(self) -> "contextlib.AbstractAsyncContextManager[object]":
        """Return a context for one call: where its questions are to be of one call, they come one at a time."""
        return self._turn if self.config.asks_one else contextlib.nullcontext()

    async def close(self) -> None:
        for task in self._refreshes.values():
            task.cancel()
        await self._pool.close()
        await self._opener.close()

    async def restart(self) -> None:
        """End its conversations: the next request opens new ones."""
        pool, self._pool = self._pool, SessionPool(self._open)
        self._delays.clear()
        await pool.close()

    async def _open(self, key: SessionKey) -> UpstreamSession:
        def note(method: str, params: dict[str, Any]) -> None:
            if method in CHANGES:
                self.refresh(key, DEBOUNCE if time.monotonic() > self._quiet_until else CALM)
            else:
                self.watches.note(method, params)

        try:
            session = await self._opener.open(key, note)
        except MountError as error:
            self._note_failure(key, error)
            raise
        self._delays.pop(key.principal, None)
        self._set_state(MountState("running", time.time()))
        session.follow_lists()
        if key.profile not in self._fresh:
            self.refresh(key)
        return session

    def _delay_of(self, principal: str) -> RestartDelay:
        if principal not in self._delays:
            if len(self._delays) >= MAX_DELAYS:
                del self._delays[next(iter(self._delays))]
            self._delays[principal] = RestartDelay()
        return self._delays[principal]

    def _note_failure(self, key: SessionKey, error: MountError) -> None:
        self._delay_of(key.principal).note_failure()
        if self.state.error != error.sentence:
            log.warning("mount %s: %s", self.name, error.text)
        self._set_state(MountState("failed", time.time(), error.code, error.sentence))

    def _set_state(self, state: MountState) -> None:
        before, self.state = self.state, state
        if (before.status, before.error) != (state.status, state.error):
            self._on_change(self)

    def _note_fresh(self, profile: ClientProfile) -> None:
        if len(self._fresh) >= MAX_FRESH:
            self._fresh.clear()
        self._fresh.add(profile)
        self._refreshes.pop(profile, None)

    async def _fetch(self, key: SessionKey) -> MountLists:
        """Return the lists. Raises MountError."""
        session = await self.get_session(key)
        try:
            return await fetch_lists(session)
        except UpstreamRefusedError as error:
            raise MountError("LIST_FAILED", f"it refused to list what it has: {error}") from None

    async def _refresh(self, key: SessionKey, after: float) -> None:
        if after:
            await asyncio.sleep(after)
        lists = None
        while lists is None:
            try:
                lists = await self._fetch(key)
            except MountError as error:
                if error.code == "LIST_FAILED":  # others were noted as they came
                    self._note_failure(key, error)
                await asyncio.sleep(max(self._delay_of(key.principal).seconds_left, DEBOUNCE))
        self._quiet_until = time.monotonic() + CALM
        self._note_fresh(key.profile)
        if self.store.put(key.profile, lists):
            await asyncio.to_thread(self.store.save)
            self._on_change(self)

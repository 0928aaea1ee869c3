"""Hold what all people have switched off in memory, so that no call reads the state.

The state is read at the start, and then what has changed since. Until the first time nothing of mounts is served, since
somebody may have switched it off. Nor is it to a person whose row can't be read; others go on.
"""

import asyncio
import json
import logging
from collections.abc import Awaitable, Callable
from functools import partial
from typing import TYPE_CHECKING, Any

import msgspec

from toolgate.server.base.errors import StateError
from toolgate.server.features.mounts.choices import rows
from toolgate.server.features.mounts.choices.switched_off import (
    NOTHING,
    ChoiceError,
    SwitchedOff,
    decode_choice,
    encode_choice,
)
from toolgate.server.state import flags
from toolgate.server.state.store import Store

if TYPE_CHECKING:
    from toolgate.server.state.store import Connection

SLACK = 60.0  # seconds from the look at the clock to the end of a transaction, at most
AGAIN = 5.0  # seconds before a state that failed is read again
STEP = 0.001  # seconds between two changes of one person, at least
ANYBODY = "anybody"  # key of the flag

log = logging.getLogger("toolgate.mounts")

Change = Callable[[SwitchedOff], SwitchedOff]


class KnownChoice(msgspec.Struct, frozen=True):
    """A choice, or None for one that can't be read, and when it was made, in seconds since 1970."""

    switched_off: SwitchedOff | None
    changed_at: float


class ChoiceBook:
    """The choices of all people.

    on_change: is called with a principal, and what they had and have switched off, when that differs; None is unknown
    share: is awaited with a principal after their choice was stored here: other servers on the state don't know of it
    """

    def __init__(
        self,
        store: Callable[[], Store],
        on_change: Callable[[str, SwitchedOff | None, SwitchedOff | None], None],
        share: Callable[[str], Awaitable[None]],
        again: float = AGAIN,
    ) -> None:
        self._is_loaded = False
        self._store = store
        self._on_change = on_change
        self._share = share
        self._again = again
        self._known: dict[str, KnownChoice] = {}
        self._since = 0.0  # rows that changed before are known
        self._reading: asyncio.Task[None] | None = None
        self._is_stale = False

    def find(self, principal: str) -> SwitchedOff | None:
        """Return what a person has switched off, or None: it is not known yet, or can't be read."""
        known = self._known.get(principal)
        if known is not None:
            return known.switched_off
        return NOTHING if self._is_loaded else None

    def has(self, choice: SwitchedOff | None) -> bool:
        """Return whether somebody has switched off just this."""
        return any(known.switched_off == choice for known in self._known.values())

    async def load(self) -> None:
        """Read what has changed. Raises StateError."""
        store = self._store()
        if store.has_flag(flags.MOUNT_CHOICES, ANYBODY) and not store.is_empty():
            begin = store.now()
            for row in await store.read(partial(rows.list_choices, since=self._since)):
                self._take(row.principal, _read(row))
            self._since = begin - SLACK
        self._is_loaded = True

    def load_soon(self) -> None:
        """Read what has changed, again and again until that succeeds."""
        self._is_stale = True
        if self._reading is None or self._reading.done():
            self._reading = asyncio.get_running_loop().create_task(self._load_again())

    async def change(self, principal: str, change: Change) -> SwitchedOff:
        """Store another choice of a person, and return it. Raises StateError and ChoiceError."""
        store = self._store()

        def write(connection: "Connection") -> tuple[SwitchedOff, float]:
            row = rows.find_choice(connection, principal)
            before = NOTHING if row is None else decode_choice(row.switched_off)
            after = change(before)
            changed_at = store.now() if row is None else max(store.now(), row.changed_at + STEP)
            rows.write_choice(connection, principal, encode_choice(after), changed_at)
            store.set_flag(flags.MOUNT_CHOICES, ANYBODY, True)
            return after, changed_at

        after, changed_at = await store.transact(write, alone="mounts")
        self._take(principal, KnownChoice(after, changed_at))
        await self._share(principal)
        return after

    async def remove(self, principal: str) -> None:
        """Forget a person. Raises StateError."""
        if self._store().has_flag(flags.MOUNT_CHOICES, ANYBODY) and not self._store().is_empty():
            await self._store().transact(partial(rows.remove_choice, principal=principal), alone="mounts")
        self._known.pop(principal, None)

    def close(self) -> None:
        if self._reading is not None:
            self._reading.cancel()

    def _take(self, principal: str, found: KnownChoice) -> None:
        """Take what the state has, unless it is older than what is known."""
        known = self._known.get(principal)
        if known is not None and known.changed_at >= found.changed_at:
            return
        self._known[principal] = found
        if found.switched_off is None:
            told = json.dumps(principal)
            log.error("what the person %s has switched off can't be read: nothing of mounts is served to them", told)
        before = NOTHING if known is None else known.switched_off
        if before != found.switched_off:
            self._on_change(principal, before, found.switched_off)

    async def _load_again(self) -> None:
        while self._is_stale:
            self._is_stale = False
            try:
                await self.load()
            except StateError as error:
                self._is_stale = True
                log.warning("what people have switched off can't be read yet: %s", error)
                await asyncio.sleep(self._again)


def _read(row: Any) -> KnownChoice:
    try:
        return KnownChoice(decode_choice(row.switched_off), row.changed_at)
    except ChoiceError:
        return KnownChoice(None, row.changed_at)

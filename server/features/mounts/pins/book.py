"""Know what was approved of the mounts without asking the state at a call, and write what is found to it.

What is decided here counts at once, and is written soon, in order; while the state can't be reached it is tried again.
"""

import asyncio
import logging
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Collection, Iterable
from typing import TYPE_CHECKING

from toolgate.server.base.errors import StateError
from toolgate.server.features.mounts.pins import rows
from toolgate.server.features.mounts.pins.definitions import ItemDefinition, Kind
from toolgate.server.features.mounts.pins.rows import Standing, StoredBaseline, StoredPin
from toolgate.server.state import flags
from toolgate.server.state.store import Store

if TYPE_CHECKING:
    from toolgate.server.state.store import Connection

AGAIN = 5.0  # seconds
CLOSE_WITHIN = 2.0  # seconds for the last writes

log = logging.getLogger("toolgate.mounts")

Write = Callable[["Connection"], bool]  # returns whether what is known here still holds
Found = tuple[list[StoredBaseline], list[StoredPin]]
FormKey = tuple[Kind, str]  # and the digest


class PinSet:
    """What is known of one mounted server. `taken_at`: when its first lists were, in seconds since 1970; `seen`: by a
    person."""

    def __init__(self, taken_at: float, *, seen: bool) -> None:
        self.taken_at = taken_at
        self.seen = seen
        self._standings: dict[FormKey, Standing] = {}
        self._names: dict[Standing, dict[FormKey, str]] = {"approved": {}, "held": {}, "refused": {}}  # the newest last
        self._counts = Counter[tuple[Kind, str]]()  # forms of each kind and name

    def find(self, item: ItemDefinition) -> Standing | None:
        """Return what was decided of a form, or None if nothing was."""
        return self._standings.get((item.kind, item.digest))

    def has(self, item: ItemDefinition) -> bool:
        """Return whether an item of this name is known in any form."""
        return (item.kind, item.name) in self._counts

    def set(self, kind: Kind, name: str, digest: str, standing: Standing) -> None:
        """Take a decision. Where there is too much, the oldest is dropped, but nothing that was refused."""
        key = kind, digest
        self._drop(key)
        self._standings[key] = standing
        self._names[standing][key] = name
        self._counts[kind, name] += 1
        if standing != "refused" and len(self._names[standing]) > rows.MAX_PINS:
            self._drop(next(iter(self._names[standing])))

    def _drop(self, key: FormKey) -> None:
        standing = self._standings.pop(key, None)
        if standing is not None:
            named = key[0], self._names[standing].pop(key)
            self._counts[named] -= 1
            if not self._counts[named]:
                del self._counts[named]


class PinBook:
    """The pins of all mounts of one server. `on_load()` is called when others may count than before; `again`: seconds
    before a state that failed is tried again."""

    def __init__(self, store: Callable[[], Store], on_load: Callable[[], None], again: float = AGAIN) -> None:
        self._store = store
        self._on_load = on_load
        self._again = again
        self._mounts: set[str] = set()  # that are asked for
        self._loaded: frozenset[str] = frozenset()  # whose pins were read
        self._decisions = 0  # that were made here
        self._sets: dict[tuple[str, str], PinSet] = {}
        self._found: Found | None = None  # what was read last
        self._refused = defaultdict[str, list[StoredPin]](list)  # of each mount, whichever server listed it
        self._writes: deque[Write] = deque()
        self._is_stale = False  # whether the state has to be read again
        self._work: asyncio.Task[None] | None = None

    def now(self) -> float:
        return self._store().now()

    def may_know(self, flag: str, mount: str) -> bool:
        """Return whether the state may have a baseline, or refusals, of a mount."""
        return self._store().has_flag(flag, mount)

    def is_loaded(self, mount: str) -> bool:
        """Return whether the pins of a mount were read."""
        return mount in self._loaded

    def find(self, mount: str, server: str) -> PinSet | None:
        """Return what is known of a server of a mount that is loaded, or None if nothing is."""
        return self._sets.get((mount, server))

    async def load(self, mounts: Collection[str]) -> None:
        """Read what was decided of these mounts, and of those of earlier calls. Raises StateError."""
        self._mounts.update(mounts)
        if await self._read():
            self._on_load()

    def load_soon(self, mount: str) -> None:
        """Have the pins of a mount read, again and again until that succeeds."""
        self._mounts.add(mount)
        self._read_soon()

    def take_baseline(self, mount: str, server: str, items: Collection[ItemDefinition]) -> PinSet:
        """Approve the first lists of a server, but for what was refused of the mount, and return what is known of it
        now."""
        now = self.now()
        known = self._sets[mount, server] = PinSet(now, seen=False)
        for item in items:
            known.set(item.kind, item.name, item.digest, "approved")
        _refuse(known, self._refused[mount])
        store = self._store()

        def write(connection: "Connection") -> bool:
            store.set_flag(flags.MOUNT_BASELINE, mount, True)
            is_first = rows.take_baseline(connection, mount, server, items, now, seen=False)
            return is_first and not rows.has_refusal(connection, mount)

        self._write_soon(write)
        return known

    def approve(self, mount: str, server: str, items: Iterable[ItemDefinition]) -> None:
        self._decide(mount, server, list(items), "approved", rows.approve)

    def hold(self, mount: str, server: str, items: Iterable[ItemDefinition]) -> None:
        """Have forms wait for a review."""
        self._decide(mount, server, list(items), "held", rows.hold)

    async def close(self) -> None:
        """Write what is left, for a moment."""
        if self._work is not None and not self._work.done():
            await asyncio.wait([self._work], timeout=CLOSE_WITHIN if self._writes else 0)
            self._work.cancel()

    def _decide(
        self,
        mount: str,
        server: str,
        items: list[ItemDefinition],
        standing: Standing,
        write_rows: Callable[["Connection", str, str, list[ItemDefinition], float], None],
    ) -> None:
        known, now = self._sets[mount, server], self.now()
        for item in items:
            known.set(item.kind, item.name, item.digest, standing)

        def write(connection: "Connection") -> bool:
            write_rows(connection, mount, server, items, now)
            return True

        self._write_soon(write)

    def _write_soon(self, write: Write) -> None:
        self._decisions += 1
        self._writes.append(write)
        self._work_soon()

    def _read_soon(self) -> None:
        self._is_stale = True
        self._work_soon()

    def _work_soon(self) -> None:
        if self._work is None or self._work.done():
            self._work = asyncio.get_running_loop().create_task(self._write_and_read())

    async def _write_and_read(self) -> None:
        """Write what was decided here, in order, and then read if that is due."""
        while self._writes or self._is_stale:
            try:
                if self._writes:
                    holds = await self._store().transact(self._writes[0], alone="mounts")
                    self._writes.popleft()
                    self._is_stale = self._is_stale or not holds
                else:
                    self._is_stale = False
                    await self._read()
                    self._on_load()
            except StateError as error:
                self._is_stale = True
                log.warning("what was approved of mounted servers can't be kept in the state yet: %s", error)
                await asyncio.sleep(self._again)

    async def _read(self) -> bool:
        """Read the state, and return whether it differs from what was read last. What is decided here meanwhile counts
        more: then it is read again."""
        store, mounts, decisions = self._store(), sorted(self._mounts), self._decisions

        def read(connection: "Connection") -> Found:
            return rows.list_baselines(connection, mounts), rows.list_standings(connection, mounts)

        found: Found = ([], []) if store.is_empty() else await store.read(read)
        if self._writes or self._decisions != decisions:
            self._read_soon()
            return False
        before = self._loaded, self._found
        self._loaded, self._found = frozenset(mounts), found
        self._sets, self._refused = _collect(found)
        return before != (self._loaded, found)


def _collect(found: Found) -> tuple[dict[tuple[str, str], PinSet], defaultdict[str, list[StoredPin]]]:
    """Return what is known of each server of each mount, and what was refused of each mount."""
    baselines, pins = found
    refused = defaultdict[str, list[StoredPin]](list)
    sets = {(each.mount, each.server): PinSet(each.taken_at, seen=each.seen) for each in baselines}
    for pin in pins:
        if (known := sets.get((pin.mount, pin.server))) is not None:
            known.set(pin.kind, pin.name, pin.digest, pin.standing)
        if pin.standing == "refused":
            refused[pin.mount].append(pin)
    for (mount, _), known in sets.items():
        _refuse(known, refused[mount])
    return sets, refused


def _refuse(known: PinSet, pins: Iterable[StoredPin]) -> None:
    for pin in pins:
        known.set(pin.kind, pin.name, pin.digest, "refused")

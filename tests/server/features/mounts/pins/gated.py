"""The gates of mounts over a state on the disk, without the servers behind them."""

import asyncio
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from toolgate.server.base.errors import StateError
from toolgate.server.features.mounts.config.mount_config import MountConfig, OnChange
from toolgate.server.features.mounts.lists.list_store import MountLists
from toolgate.server.features.mounts.pins import rows
from toolgate.server.features.mounts.pins.book import PinBook
from toolgate.server.features.mounts.pins.gate import PinGate
from toolgate.server.features.mounts.pins.rows import Standing, StoredPin
from toolgate.server.state import flags
from toolgate.server.state.sqlite.store import SqliteStore
from toolgate.server.state.store import Subject

if TYPE_CHECKING:
    from toolgate.server.state.store import Connection

T = TypeVar("T")


class LeavingStore(SqliteStore):
    """A state that can't be reached while `is_away`. `reads`: how often it was read."""

    is_away = False
    reads = 0

    async def read(self, function: "Callable[[Connection], T]") -> T:
        self.reads += 1
        self._require()
        return await super().read(function)

    async def transact(
        self, function: "Callable[[Connection], T]", *, alone: Subject | tuple[Subject, str] | None = "everything"
    ) -> T:
        self._require()
        return await super().transact(function, alone=alone)

    def _require(self) -> None:
        if self.is_away:
            raise StateError("the state is away")


class GatedMount:
    """One mount and its gate; a test says what it lists for each kind of client."""

    def __init__(self, name: str, mode: OnChange, book: PinBook, command: str) -> None:
        self.lists: dict[str, MountLists] = {}
        self.gate = PinGate(MountConfig(name=name, command=command, prefix=f"{name}__"), mode, book, lambda: self.lists)

    def say(self, lists: MountLists, profile: str = "{}") -> None:
        self.lists[profile] = lists
        self.gate.note(profile, lists)

    def serves(self, lists: MountLists) -> list[str]:
        """Return the descriptions of the tools that are served."""
        return [each["description"] for each in self.gate.select(lists).tools]


class GatedMounts:
    """The mounts of one server, and its state."""

    def __init__(self, store: LeavingStore) -> None:
        self.store = store
        self.book = PinBook(lambda: store, self._renew, again=0.05)
        self.mounts: list[GatedMount] = []

    def _renew(self) -> None:
        for each in self.mounts:
            each.gate.renew()

    async def mount(self, name: str, mode: OnChange, *, is_read: bool = True, command: str = "far") -> GatedMount:
        """Return one more mount. `is_read`: its pins are read before."""
        if is_read:
            await self.book.load([name])
        mount = GatedMount(name, mode, self.book, command)
        self.mounts.append(mount)
        return mount

    async def list_pins(self, name: str) -> list[StoredPin]:
        return await self.store.read(partial(rows.list_pins, mount=name))

    async def decide(self, name: str, standing: Standing, which: Callable[[StoredPin], bool]) -> None:
        """Decide what the command `mount review` does."""
        pins: Sequence[StoredPin] = [pin for pin in await self.list_pins(name) if which(pin)]

        def write(connection: Any) -> None:
            rows.decide(connection, pins, standing, self.store.now())
            self.store.set_flag(flags.MOUNT_REFUSALS, name, standing == "refused")

        await self.store.transact(write, alone="mounts")
        await self.book.load([name])

    async def settle(self) -> None:
        """Wait until all is written, and what was written is read."""
        while others := asyncio.all_tasks() - {asyncio.current_task()}:
            await asyncio.wait(others)


@asynccontextmanager
async def gated(folder: Path) -> AsyncGenerator[GatedMounts]:
    store = LeavingStore(folder)
    mounts = GatedMounts(store)
    try:
        yield mounts
        await mounts.book.close()
    finally:
        store.close()


def form(number: int) -> MountLists:
    """Return lists with one form of the tool `t`."""
    return MountLists(tools=[{"name": "t", "description": f"form {number}", "inputSchema": {"type": "object"}}])

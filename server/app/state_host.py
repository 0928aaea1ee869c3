"""Hold the parts of the state: what a server and each command that opens the state have."""

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from toolgate.server.app import build
from toolgate.server.app.slot import Slot
from toolgate.server.config.load import Config
from toolgate.server.state.keys.sealing_keys import KeyFolder, SealingKeys
from toolgate.server.state.live_processes import LiveProcesses, ReplicaLocks
from toolgate.server.state.sqlite.store import SqliteStore
from toolgate.server.state.store import Store

if TYPE_CHECKING:
    from toolgate.server.base.bus.bus import Bus, Counters
    from toolgate.server.state.backup.state_transfer import StateTransfer


class StateHost:
    """The parts of the state, in slots.

    upgrades: False refuses a database of an older version
    within: seconds for a transaction where a network may be lost; None: the feature's own limit

    is_shared: whether other servers use the same state at the same time
    """

    def __init__(self, config: Config, *, upgrades: bool = True, within: float | None = None) -> None:
        self.config = config
        self.upgrades = upgrades
        self.within = within
        self.is_shared = False
        self.folder = Slot("folder", partial(build.state_folder, config))
        self.lock = Slot("lock", lambda: build.lock_state(self.folder()))
        self.store: Slot[Store] = Slot("store", lambda: SqliteStore(config.state, upgrades=upgrades))
        self.secret: Slot[bytes | None] = Slot("secret", lambda: None)  # what seals keys in a shared database
        self.keys: Slot[SealingKeys] = Slot("keys", lambda: KeyFolder(config.state / "keys"))
        self.transfer: Slot[StateTransfer] = Slot("transfer", self._create_transfer)  # for backups
        self.processes: Slot[LiveProcesses] = Slot("processes", lambda: self.store().open_processes())
        self.locks: Slot[Callable[[str], ReplicaLocks] | None] = Slot("locks", lambda: None)  # by a replica's name
        self.bus: Slot[Bus | None] = Slot("bus", self._create_bus)  # None over stdio
        self.create_counters: Slot[Callable[[], Counters]] = Slot("create_counters", build.find_counters)

    def _create_transfer(self) -> "StateTransfer":
        from toolgate.server.state.backup.state_transfer import FileTransfer  # start-up: for two commands

        return FileTransfer(self.config.state)

    def _create_bus(self) -> "Bus | None":
        if not self.config.is_remote:
            return None
        from toolgate.server.base.bus.memory_bus import MemoryBus  # start-up: stdio does without
        from toolgate.server.base.bus.settings import BusSettings

        return MemoryBus(BusSettings())

"""Hold the mounts that are served, and follow the config file: a change touches no mount but its own."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence

from toolgate.server.base.errors import UsageError
from toolgate.server.config.load import Config
from toolgate.server.features.mounts.config.faults import MountFault
from toolgate.server.features.mounts.config.mount_config import MountConfig
from toolgate.server.features.mounts.config.table import MountList, read_current_mounts
from toolgate.server.features.mounts.mount.mount_standing import MountRecord
from toolgate.server.features.mounts.parts.views import ServedMount

log = logging.getLogger("toolgate.mounts")


class MountSet:
    """The mounts of one server, in the order of the file. `prepare(configs)` comes before they are made, and
    `create(config)` makes one; `on_change()` is called when others are served."""

    def __init__(
        self,
        create: Callable[[MountConfig], ServedMount],
        close: Callable[[ServedMount], Awaitable[None]],
        on_change: Callable[[], None],
        prepare: Callable[[Sequence[MountConfig]], Awaitable[None]],
    ) -> None:
        self._create = create
        self._close = close
        self._on_change = on_change
        self._prepare = prepare
        self._served: dict[str, ServedMount] = {}
        self.faults: tuple[MountFault, ...] = ()
        self._unreadable = ""  # why the file can't be read now: a log beside it changes its folder with each line

    def list_all(self) -> list[ServedMount]:
        return list(self._served.values())

    async def apply(self, found: MountList) -> None:
        """Serve these mounts. Those that are as before stay, with all that they do."""
        self._log_faults(found)
        await self._prepare(found.mounts)
        before, self._served = self._served, {}
        for config in found.mounts:
            same = before.get(config.name)
            is_same = same is not None and same.mount.config == config
            self._served[config.name] = before.pop(config.name) if is_same else self._create(config)
        self._on_change()
        await asyncio.gather(*(self._close(each) for each in before.values()))

    async def follow(self, config: Config) -> None:
        """Look at the config file, and serve what it says now. A file that can't be read changes nothing."""
        try:
            found = await asyncio.to_thread(read_current_mounts, config)
        except UsageError as error:
            if str(error) != self._unreadable:
                log.warning("%s: the mounts stay as they are", error)
            self._unreadable = str(error)
            return
        self._unreadable = ""
        if (found.faults, tuple(each.mount.config for each in self.list_all())) != (self.faults, found.mounts):
            await self.apply(found)

    async def restart(self, name: str) -> None:
        """End the conversations of a mount: the next request begins new ones."""
        served = self._served.get(name)
        if served is not None:
            log.info("mount %s is restarted", name)
            served.forwarder.parked.end(None)  # what they wait for is over
            await served.mount.restart()

    async def read_record(self, name: str) -> MountRecord | None:
        """Return what has happened to a mount, or None if there is none of this name."""
        served = self._served.get(name)
        return await served.mount.read_record() if served is not None else None

    async def close(self) -> None:
        served, self._served = self.list_all(), {}
        await asyncio.gather(*(self._close(each) for each in served))

    def _log_faults(self, found: MountList) -> None:
        for fault in found.faults:
            if fault not in self.faults:
                log.warning("mount %s: %s: %s", fault.name, fault.code, fault.text)
        self.faults = found.faults

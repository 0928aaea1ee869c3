"""Read what was approved of mounts, before it counts and again and again."""

import contextlib
import logging
from collections.abc import Callable, Sequence

from toolgate.server.app.host import AppHost
from toolgate.server.base.errors import StateError
from toolgate.server.features.mounts.config.mount_config import MountConfig, OnChange
from toolgate.server.features.mounts.pins.book import PinBook
from toolgate.server.state import flags

log = logging.getLogger("toolgate.mounts")


class PinReader:
    """The pins of all mounts. `on_change()` is called when others count."""

    def __init__(self, host: AppHost, on_change: Callable[[], None]) -> None:
        self._host = host
        self.book = PinBook(host.store, on_change)

    async def load(self, configs: Sequence[MountConfig]) -> None:
        """Read what was approved of mounts, where nothing of them may be served before that is known."""
        needed = [
            config.name
            for config in configs
            if find_mode(self._host, config) == "hold" or self.book.may_know(flags.MOUNT_REFUSALS, config.name)
        ]
        if needed:
            with contextlib.suppress(StateError):  # the gates are shut, and have it tried again
                await self.book.load(needed)

    async def reload(self, names: Sequence[str]) -> None:
        """Take what was decided of mounts elsewhere."""
        if names:
            try:
                await self.book.load(names)
            except StateError as error:
                log.warning("what was approved of mounted servers can't be read yet: %s", error)


def find_mode(host: AppHost, config: MountConfig) -> OnChange:
    """Return what becomes of what is new in a mount's lists. Over stdio, who upgrades a server is its user."""
    return config.on_change or ("hold" if host.config.is_remote else "warn")

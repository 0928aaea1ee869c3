"""Compare the mounts of several servers on one state: each reads a config file of its own, and people expect the same
tools at whichever they reach."""

import asyncio
import contextlib
import hashlib
import logging
from collections.abc import Callable, Mapping, Sequence

import msgspec

from toolgate.server.base.bus.bus import Bus, BusUnreachableError
from toolgate.server.features.mounts.config.mount_config import MountConfig

EVERY = 15.0  # seconds between two looks
PREFIX = "mounts:"  # of the keys of the bus
LOCAL = ("env", "headers", "cwd", "files")  # what may well differ between machines

Digests = Mapping[str, str]  # of mounts by name

log = logging.getLogger("toolgate.mounts")


def digest_mounts(mounts: Sequence[MountConfig]) -> dict[str, str]:
    """Return a digest of each mount, without what may differ between machines."""
    found: dict[str, str] = {}
    for mount in mounts:
        fields = {name: value for name, value in msgspec.structs.asdict(mount).items() if name not in LOCAL}
        found[mount.name] = hashlib.sha256(msgspec.json.encode(fields)).hexdigest()[:16]
    return found


class FileComparison:
    """Tells the other replicas what is mounted here, and finds what differs. `on_change()` is called when `differing`
    does: the mounts that another replica lacks, or configures differently."""

    def __init__(
        self, bus: Bus, list_mounts: Callable[[], Sequence[MountConfig]], on_change: Callable[[], None]
    ) -> None:
        self.differing: tuple[str, ...] = ()
        self._bus = bus
        self._list_mounts = list_mounts
        self._on_change = on_change

    async def run(self) -> None:
        """Compare again and again, until cancelled."""
        while True:
            with contextlib.suppress(BusUnreachableError, msgspec.MsgspecError):  # of another version, say
                await self.compare()
            await asyncio.sleep(EVERY)

    async def compare(self) -> None:
        """Raises BusUnreachableError."""
        own, keys = digest_mounts(self._list_mounts()), self._bus.keys
        await keys.set(PREFIX + self._bus.replica.name, msgspec.json.encode(own), 3 * EVERY)
        others = [name for name in await self._bus.replica.list_names() if name != self._bus.replica.name]
        told = await keys.get_many([PREFIX + name for name in others]) if others else []
        found = {name for data in told if data is not None for name in find_differences(own, data)}
        differing = tuple(sorted(found))
        if differing != self.differing:
            self.differing = differing
            if differing:
                log.warning("mounts differ between the servers on this state: %s", ", ".join(differing))
            self._on_change()


def find_differences(own: Digests, data: bytes) -> set[str]:
    """Return the names of mounts that another server lacks, or configures differently."""
    other = msgspec.json.decode(data, type=dict[str, str])
    return {name for name in own.keys() | other.keys() if own.get(name) != other.get(name)}

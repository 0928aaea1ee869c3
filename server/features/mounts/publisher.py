"""Write how the mounts are whenever that differs, for commands on this machine, and never on the event loop."""

import asyncio
import contextlib
from collections.abc import Callable, Mapping, Sequence

from toolgate.server.features.mounts.control import MountControl
from toolgate.server.features.mounts.mount.mount_standing import MountState


class StatusPublisher:
    """Publishes what `read_states()` and `read_names()` return, as a `ServerStatus` has it. A full disk costs the
    commands their answer, and nothing else."""

    def __init__(
        self,
        control: MountControl,
        read_states: Callable[[], Mapping[str, MountState]],
        read_names: Callable[[], Mapping[str, Mapping[str, str]]],
    ) -> None:
        self.differing: Sequence[str] = ()  # mounts that other servers lack, or configure differently
        self._control = control
        self._read_states = read_states
        self._read_names = read_names
        self._is_due = False
        self._has_published = False
        self._publishing: asyncio.Task[None] | None = None

    async def begin(self) -> None:
        with contextlib.suppress(OSError):
            await asyncio.to_thread(self._control.begin)
        await self.publish()

    def publish_soon(self) -> None:
        """Publish once for all that differs meanwhile."""
        self._is_due = True
        if self._publishing is None or self._publishing.done():
            self._publishing = asyncio.get_running_loop().create_task(self._publish_due())

    async def publish(self) -> None:
        self.publish_soon()
        if self._publishing is not None:
            await asyncio.shield(self._publishing)

    async def end(self) -> None:
        """Remove what was published."""
        if self._publishing is not None:
            await asyncio.wait([self._publishing])
        with contextlib.suppress(OSError):
            await asyncio.to_thread(self._control.end)

    async def _publish_due(self) -> None:
        while self._is_due:
            self._is_due = False
            states = self._read_states()
            if not states and not self._has_published:
                continue  # there were no mounts yet
            self._has_published = True
            with contextlib.suppress(OSError):
                told = states, self.differing, self._read_names()
                await asyncio.to_thread(self._control.publish, *told)

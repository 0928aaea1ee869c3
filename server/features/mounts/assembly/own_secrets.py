"""Make the part of the first page where people set their own secrets, and act on it at each server."""

import asyncio
import contextlib
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from toolgate.server.app.host import AppHost
from toolgate.server.base.bus.bus import Bus
from toolgate.server.features.mounts.assembly.sharing import ChangeSharing, PersonChange
from toolgate.server.features.mounts.kept_secrets.secret_store import SecretStore
from toolgate.server.features.mounts.parts.views import ServedMount
from toolgate.server.features.mounts.upstream.errors import MountError

if TYPE_CHECKING:
    from toolgate.server.features.mounts.kept_secrets.page_part import SecretsPart

TOPIC = "mount-secrets"


class OwnSecrets:
    """The secrets that people set and remove for themselves. `list_served()` returns the mounts;
    `fetch_lists(served, principal)` has a person's clients told of what a mount lists now."""

    def __init__(
        self,
        host: AppHost,
        list_served: Callable[[], Sequence[ServedMount]],
        fetch_lists: Callable[[ServedMount, str], None],
    ) -> None:
        self._host = host
        self._list_served = list_served
        self._fetch_lists = fetch_lists
        self._part: SecretsPart | None = None  # once a page is served
        self._sharing: ChangeSharing | None = None  # with other servers on the state
        self._taking: set[asyncio.Task[None]] = set()

    def open_part(self) -> "SecretsPart":
        from toolgate.server.features.mounts.kept_secrets.page_part import SecretsPart  # start-up: HTTP alone has pages

        if self._part is None:
            store = SecretStore(self._host.store(), self._host.keys())
            self._part = SecretsPart(store, lambda: [each.mount.config for each in self._list_served()], self._note)
        return self._part

    def share_with(self, bus: Bus) -> None:
        """Tell the other servers on the state, and hear of them."""
        self._sharing = ChangeSharing(bus, TOPIC, self._take_soon, lambda: None)  # each call reads the state

    def close(self) -> None:
        for task in self._taking:
            task.cancel()

    async def _note(self, principal: str, is_set: bool) -> None:
        """A person has set or removed a secret of their own here."""
        change = PersonChange(principal, is_over=not is_set)
        await self._take(change)
        if self._sharing is not None:
            self._sharing.tell(change)

    def _take_soon(self, change: PersonChange) -> None:
        task = asyncio.get_running_loop().create_task(self._take(change))
        self._taking.add(task)
        task.add_done_callback(self._taking.discard)

    async def _take(self, change: PersonChange) -> None:
        """End conversations with another secret. The person's clients hear of what one that was set opens, and their
        open pages of either."""
        for served in self._list_served():
            served.mount.end_outdated(change.principal)
            if not change.is_over:
                with contextlib.suppress(MountError):  # it is told at the call
                    await served.mount.note_secrets(change.principal)
                self._fetch_lists(served, change.principal)
        if self._part is not None:
            self._part.notify(change.principal)

"""Show a person the secrets that mounts want of them, for the first page: set, not set, the team's. Values are never
shown again."""

from collections import defaultdict
from collections.abc import Awaitable, Callable, Collection, Mapping
from pathlib import Path

import msgspec

from toolgate.server.base.reports.page_part import ActionResult, PartRows
from toolgate.server.base.watchers import Watchers
from toolgate.server.features.mounts.config.mount_config import MountConfig
from toolgate.server.features.mounts.kept_secrets.resolver import find_secret_names
from toolgate.server.features.mounts.kept_secrets.secret_store import TEAM, SecretError, SecretStore

VALUE = "secret-value"  # the field of the form
NO_SUCH = "No mounted server uses a secret of this name."
REMOVED = "Your secret was removed. The next call of a server that needs it says so."
ALREADY_REMOVED = "It was removed already."


class ShownSecret(msgspec.Struct, frozen=True):
    """One name. `mounts` use it; `set_at` is when the person has set their own, in seconds since the epoch, or None.

    is_shared: whether there is one for everybody
    needs_own: whether one of the mounts does not take that
    """

    name: str
    mounts: tuple[str, ...]
    set_at: float | None
    is_shared: bool
    needs_own: bool


class SecretsPart:
    """The secrets of one server's mounts, which `list_mounts()` returns. `on_change(principal, is_set)` is awaited
    after a person has set or removed one of theirs."""

    name = "secrets"
    title = "Secrets of mounted servers"
    template = Path(__file__).parents[1] / "pages" / "secrets.html"

    def __init__(
        self,
        secrets: SecretStore,
        list_mounts: Callable[[], Collection[MountConfig]],
        on_change: Callable[[str, bool], Awaitable[None]],
    ) -> None:
        self._secrets = secrets
        self._on_change = on_change
        self._list_mounts = list_mounts
        self._watchers = Watchers()
        self.actions = {"keep-secret": self._set, "remove-secret": self._remove}

    async def read(self, principal: str) -> PartRows:
        if not self._list_mounts():
            return PartRows([], is_work=False)
        users = self._find_users()
        own = {each.name: each.set_at for each in await self._secrets.list(principal)}
        if not users and not own:
            return PartRows([], is_work=False)
        shared = {each.name for each in await self._secrets.list(TEAM)}
        rows = [
            ShownSecret(
                name,
                tuple(mount.name for mount in users[name]),
                own.get(name),
                name in shared,
                any(mount.needs_own_secrets for mount in users[name]),
            )
            for name in sorted({*users, *own})
        ]
        return PartRows(rows, is_work=False)

    def watch(self, principal: str, notify: Callable[[], None]) -> Callable[[], None]:
        return self._watchers.watch(principal, notify)

    def notify(self, principal: str) -> None:
        """A person has set or removed a secret of theirs."""
        self._watchers.notify(principal)

    def _find_users(self) -> defaultdict[str, list[MountConfig]]:
        """Return the mounts that use each name, other than those whose conversation belongs to nobody."""
        found: defaultdict[str, list[MountConfig]] = defaultdict(list)
        for mount in self._list_mounts():
            for name in find_secret_names(mount) if mount.per != "all" else ():
                found[name].append(mount)
        return found

    async def _set(self, principal: str, name: str, fields: Mapping[str, str]) -> ActionResult:
        if name not in self._find_users():
            return ActionResult(NO_SUCH, 404)
        try:
            await self._secrets.set(principal, name, fields.get(VALUE, ""))
        except SecretError as error:
            text = str(error)
            return ActionResult(f"{text[:1].upper()}{text[1:]}.", 400)
        await self._on_change(principal, True)
        return ActionResult(f"{name} is kept for you alone, and used from the next call on.")

    async def _remove(self, principal: str, name: str, _fields: Mapping[str, str]) -> ActionResult:
        if not await self._secrets.remove(principal, name):
            return ActionResult(ALREADY_REMOVED, 404)
        await self._on_change(principal, False)
        return ActionResult(REMOVED)

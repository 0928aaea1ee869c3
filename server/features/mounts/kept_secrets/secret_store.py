"""Store secrets sealed, in the state database."""

from collections.abc import Collection, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING

import msgspec

from toolgate.server.features.mounts.config.secret_references import NAME, NAME_RULE
from toolgate.server.features.mounts.kept_secrets import rows
from toolgate.server.state.keys.sealed_state import Sealer, SealError
from toolgate.server.state.keys.sealing_keys import SealingKeys
from toolgate.server.state.store import Store
from toolgate.tools.api.errors import ToolError

if TYPE_CHECKING:
    from toolgate.server.state.store import Connection

TEAM = ""  # the principal of what everybody uses who has none of their own
KEY = "mount-secrets"  # that seals them
MAX_VALUE = 65_536  # bytes, half of what a variable of a Linux process can hold
MAX_OF_PRINCIPAL = 1_000
MAX_SHOWN = 10_000  # rows of one list


class SecretError(ToolError):
    """A secret can't be stored or read; the text says why."""


class StoredSecret(msgspec.Struct, frozen=True):
    """One secret as its row has it. `set_at`: seconds since 1970."""

    principal: str
    name: str
    sealed: str
    set_at: float


class SecretStore:
    """The secrets of everybody. Each method raises StateError."""

    def __init__(self, store: Store, keys: SealingKeys) -> None:
        self._store = store
        self._sealer = Sealer(keys.find(KEY), None)

    async def set(self, principal: str, name: str, value: str) -> None:
        """Store a secret in place of the one of this name. Raises SecretError."""
        if not NAME.fullmatch(name):
            raise SecretError(f"{name!r} is not the name of a secret: {NAME_RULE}")
        if (fault := _find_fault(value)) is not None:
            raise SecretError(f"the value of {name} {fault}")
        sealed = self._sealer.seal(value, principal, ["secret", name])
        await self._store.transact(
            partial(_add, principal=principal, name=name, sealed=sealed, now=self._store.now()), alone="secrets"
        )

    async def remove(self, principal: str, name: str) -> bool:
        """Return whether there was one."""
        if self._store.is_empty():
            return False
        return await self._store.transact(partial(rows.remove_secret, principal=principal, name=name), alone="secrets")

    async def remove_all(self, principal: str) -> None:
        """Remove what a principal has."""
        if not self._store.is_empty():
            await self._store.transact(partial(rows.remove_secrets, principal=principal), alone="secrets")

    async def list(self, principal: str | None = None) -> Sequence[StoredSecret]:
        """Return the secrets of a principal, or of all, by name. Of too many the first are returned."""
        if self._store.is_empty():
            return []
        found = await self._store.read(partial(rows.list_secrets, principal=principal, most=MAX_SHOWN))
        return [StoredSecret(row.principal, row.name, row.sealed, row.set_at) for row in found]

    async def find(
        self, principal: str, names: Collection[str], *, own_only: bool = False
    ) -> Mapping[str, StoredSecret]:
        """Return those of these names that hold for a principal: its own before the team's, or its own alone."""
        if self._store.is_empty() or (own_only and principal == TEAM):
            return {}
        asked = [principal] if own_only else [TEAM, principal]
        found = await self._store.read(partial(rows.find_secrets, principals=set(asked), names=names))
        ordered = sorted(found, key=lambda row: asked.index(row.principal))
        return {row.name: StoredSecret(row.principal, row.name, row.sealed, row.set_at) for row in ordered}

    def open(self, stored: StoredSecret) -> str:
        """Return the value. Raises SecretError for one that another key has sealed."""
        try:
            return str(self._sealer.unseal(stored.sealed, stored.principal, ["secret", stored.name]))
        except SealError:
            raise SecretError(
                f"the secret {stored.name} can't be read: its key keys/{KEY} was lost or replaced; set it again"
            ) from None


def _add(connection: "Connection", principal: str, name: str, sealed: str, now: float) -> None:
    is_new = not rows.find_secrets(connection, [principal], [name])
    if is_new and rows.count_secrets(connection, principal) >= MAX_OF_PRINCIPAL:
        raise SecretError(f"there are {MAX_OF_PRINCIPAL} secrets already: remove some")
    rows.write_secret(connection, principal, name, sealed, now)


def _find_fault(value: str) -> str | None:
    """Return what is wrong with a value, in words that do not repeat it."""
    if not value:
        return "is empty"
    if "\0" in value:
        return "has a NUL character"
    try:
        size = len(value.encode())
    except UnicodeEncodeError:
        return "is no valid text"
    return f"has {size} bytes: at most {MAX_VALUE} are kept" if size > MAX_VALUE else None

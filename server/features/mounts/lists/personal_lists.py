"""Keep what single people are shown of mounted servers in the state, sealed, so that a cold start shows it to them.

Their lists tell of what is theirs there, unlike those that all share. They stay when a connection ends, and go with the
account. They may repeat the secrets that they were fetched with, so those have to be known before they are shown again:
lists that were kept with other secrets are none.
"""

import hashlib
import logging
from collections.abc import Collection
from functools import partial
from typing import Any

import msgspec

from toolgate.server.base.errors import StateError
from toolgate.server.features.mounts.kept_secrets.secret_store import KEY
from toolgate.server.features.mounts.lists import rows
from toolgate.server.features.mounts.lists.list_store import MountLists
from toolgate.server.features.mounts.lists.rows import KeptBounds
from toolgate.server.features.mounts.mount.profile import ClientProfile
from toolgate.server.state.keys.sealed_state import Sealer, SealError
from toolgate.server.state.keys.sealing_keys import SealingKeys
from toolgate.server.state.store import Store

MAX_SIZE = 2**20  # characters of one that is kept, sealed: 500 tools with long descriptions
OF_PERSON = KeptBounds(64, 4 * 2**20)  # a person has few kinds of clients
OF_ALL = KeptBounds(10_000, 128 * 2**20)  # a backup has them, too

log = logging.getLogger("toolgate.mounts")


class PersonalLists:
    """What the people of one mount were shown. `server` names what the mount runs or reaches: the lists of another one
    are not its own. A state that can't be used costs a cold start its lists, and nothing else."""

    def __init__(
        self,
        store: Store,
        keys: SealingKeys,
        mount: str,
        server: str,
        of_person: KeptBounds = OF_PERSON,
        of_all: KeptBounds = OF_ALL,
    ) -> None:
        self._store = store
        self._sealer = Sealer(keys.find(KEY), None)
        self._mount = mount
        self._server = server
        self._of_person = of_person
        self._of_all = of_all

    async def find(self, profile: ClientProfile, secrets: Collection[str] = ()) -> MountLists | None:
        """Return what a person's clients with this profile were shown last, fetched with these secrets, or None."""
        if self._store.is_empty():
            return None
        name = _digest(profile)
        find = partial(rows.find_lists, principal=profile.principal, mount=self._mount, profile=name)
        try:
            row = await self._store.read(find)
            is_own = row is not None and row.server == self._server
            return self._open(row, self._bind(name, secrets)) if is_own else None
        except (StateError, OSError) as error:  # OSError: of the file of the key
            log.warning("mount %s: what a person was shown of it can't be read: %s", self._mount, error)
            return None

    async def keep(self, profile: ClientProfile, lists: MountLists, secrets: Collection[str] = ()) -> None:
        """Store what a person's clients with this profile are shown, fetched with these secrets. What is too long, or
        nested too deeply, is not kept."""
        name = _digest(profile)
        try:
            sealed = self._sealer.seal(msgspec.to_builtins(lists), profile.principal, self._bind(name, secrets))
            if len(sealed) > MAX_SIZE:
                log.info("mount %s: what a person is shown of it is too long to be kept", self._mount)
                return
            await self._write(profile.principal, name, sealed)
        except RecursionError:
            log.info("mount %s: what a person is shown of it is nested too deeply to be kept", self._mount)
        except (StateError, OSError) as error:
            log.warning("mount %s: what a person is shown of it can't be kept: %s", self._mount, error)

    async def _write(self, principal: str, name: str, sealed: str) -> None:
        """Raises StateError."""
        key = {"principal": principal, "mount": self._mount, "profile": name}
        row: dict[str, Any] = {"server": self._server, "size": len(sealed), "kept_at": self._store.now()}
        write = partial(
            rows.write_lists, key=key, row={**row, "sealed": sealed}, of_person=self._of_person, of_all=self._of_all
        )
        await self._store.transact(write, alone="mounts")

    def _open(self, row: Any, bound: list[str]) -> MountLists | None:
        try:
            return msgspec.convert(self._sealer.unseal(row.sealed, row.principal, bound), MountLists)
        except (SealError, msgspec.ValidationError):  # other secrets, or the key that sealed it was lost
            return None

    def _bind(self, name: str, secrets: Collection[str]) -> list[str]:
        """Return what a row is bound to. It lies in no row."""
        return ["lists", self._mount, name, hashlib.sha256(msgspec.json.encode(sorted(set(secrets)))).hexdigest()]


async def remove_person(store: Store, principal: str) -> None:
    """Forget what a person was shown of all mounts. Raises StateError."""
    if not store.is_empty():
        await store.transact(partial(rows.remove_lists, principal=principal), alone="mounts")


def _digest(profile: ClientProfile) -> str:
    """Return what names a profile, which may be long."""
    return hashlib.sha256(profile.key).hexdigest()

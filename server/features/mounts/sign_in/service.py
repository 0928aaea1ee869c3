"""Hold what the sign-ins of one server share: its mounts where people sign in, their connections, and the way there."""

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Protocol
from urllib.parse import quote

from msgspec.structs import replace

from toolgate.server.base.errors import StateError
from toolgate.server.base.watchers import Watchers
from toolgate.server.cli.sign_in.requests import OAuthRequests
from toolgate.server.features.mounts.config import secret_references
from toolgate.server.features.mounts.config.mount_config import MountConfig
from toolgate.server.features.mounts.kept_secrets import filling
from toolgate.server.features.mounts.kept_secrets.secret_store import TEAM, SecretStore
from toolgate.server.features.mounts.pins.gate import digest_server
from toolgate.server.features.mounts.sign_in import requests
from toolgate.server.features.mounts.sign_in.arrivals import ConnectionArrivals
from toolgate.server.features.mounts.sign_in.elicitation import SignInElicitation
from toolgate.server.features.mounts.sign_in.flow import MountSignIn, fill_in_secret
from toolgate.server.features.mounts.sign_in.revocations import REVOKE_WITHIN, Revocations, send_in_time
from toolgate.server.features.mounts.sign_in.rows import IDENTITY, RESERVED
from toolgate.server.features.mounts.sign_in.store import ConnectionStore, MountConnection, SignInFault
from toolgate.server.features.mounts.sign_in.tokens import MountTokens

ORPHANS_EVERY = 15.0  # seconds

log = logging.getLogger("toolgate.mounts")


class IdentityKeeper(Protocol):
    """Keeps what identity providers give people with their sign-in here."""

    @property
    def may_keep(self) -> bool:
        """Whether there may be something of a person."""
        ...

    async def remove_unwanted(self) -> Sequence[MountConnection]:
        """Remove some of what no mount asks for, and return it. Raises StateError."""
        ...

    async def revoke(self, held: MountConnection) -> bool:
        """Have the provider revoke what is kept no more. Return whether nothing of it can be used."""
        ...


class SignInService:
    """The sign-ins of one server. `name`: what it calls itself to others. `on_change(principal, mount,
    is_over)` is called when a connection is another one, or ended; `share`, called with the same, has the other servers
    on the state hear of what is done here. `find_label(principal)` returns a person's name."""

    def __init__(
        self,
        store: ConnectionStore,
        secrets: SecretStore,
        name: str,
        on_change: Callable[[str, str, bool], None],
        find_label: Callable[[str], Awaitable[str]],
        share: Callable[[str, str, bool], None] = lambda *_: None,
        orphans_every: float = ORPHANS_EVERY,
    ) -> None:
        self.store = store
        self._orphans_every = orphans_every
        self._on_change = on_change
        self._find_label = find_label
        self._share = share
        self.public_url = ""  # of the pages, once they are served
        self.identities: IdentityKeeper | None = None  # once people sign in here with an identity provider
        self._secrets = secrets
        self._name = name
        self._tokens: dict[str, MountTokens] = {}  # by mount
        self._configs: dict[str, MountConfig] = {}
        self._watchers = Watchers()
        self._revoking: set[asyncio.Task[None]] = set()  # of what an identity provider gave
        self._revocations = Revocations(store, self._send_revocation)
        self._has_ended = asyncio.Event()  # a connection: its revocation is due
        self._is_left = True  # what mounts of before have made, as far as is known

    def open_tokens(self, config: MountConfig) -> MountTokens:
        """Return the tokens of a mount, which is one of this server's from now on."""
        find_link = partial(self._find_link, config.name)
        note_newer = partial(self.take_change, mount=config.name)
        found = MountTokens(
            config, digest_server(config), self.store, find_link, self._find_client_secret, note_newer=note_newer
        )
        self._configs[config.name] = config
        self._tokens[config.name] = found
        return found

    def create_elicitation(self, config: MountConfig) -> SignInElicitation:
        """Return what has the people of a mount sign in while their calls wait."""

        def note_change(principal: str) -> None:
            self.take_change(principal, config.name)

        arrivals = ConnectionArrivals(self.store, config.name, digest_server(config), self.watch, note_change)
        find_link = partial(self._find_link, config.name)
        return SignInElicitation(config, arrivals, find_link, self._find_label, self.store.now)

    async def close_tokens(self, config: MountConfig) -> None:
        """Forget a mount that is served no more, once what is being refreshed is stored."""
        if self._configs.get(config.name) is config:
            del self._configs[config.name]
            self._is_left = True
            await self._tokens.pop(config.name).close()

    @property
    def may_hold(self) -> bool:
        """Whether there may be a connection: else the state is not read."""
        return bool(self._configs) or self._is_left

    @property
    def configs(self) -> list[MountConfig]:
        """The mounts where people sign in, by name."""
        return [self._configs[name] for name in sorted(self._configs)]

    def find(self, mount: str) -> MountSignIn | None:
        """Return the sign-ins of a mount, or None: there is none of this name where people sign in."""
        config = self._configs.get(mount)
        if config is None or not self.public_url:
            return None
        return MountSignIn(
            config, digest_server(config), self.store, self.public_url, self._name, self._find_client_secret
        )

    async def disconnect(self, principal: str, mount: str | None = None) -> bool:
        """End a person's connection to a mount, or all they have, here and at the far servers. Return whether there was
        one. Raises StateError."""
        if mount is not None and mount.startswith(RESERVED):  # a form can name it, and no page shows it
            return False
        removed = await self.store.remove(principal, mount)
        for held in removed:
            if held.mount != IDENTITY:
                self.note_change(principal, held.mount, is_over=True)
            else:
                self._revoke_soon(held)
        self._has_ended.set()
        return bool(removed)

    async def end_orphans(self) -> None:
        """End what people have whose accounts were removed, and what no mount asks for, and have it revoked, again and
        again. Where there can be nothing, the state is not read."""
        while True:
            self._has_ended.clear()
            with contextlib.suppress(StateError):  # the next look finds them
                await self._look_for_orphans()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._orphans_every):
                    await self._has_ended.wait()

    async def _look_for_orphans(self) -> None:
        """Raises StateError."""
        identities = self.identities
        if self.may_hold or (identities is not None and identities.may_keep):
            for principal in await self.store.list_orphans():
                await self.disconnect(principal)
            while identities is not None and (removed := await identities.remove_unwanted()):
                await asyncio.wait([self._revoke_soon(held) for held in removed])
        if self.may_hold:
            await self._revocations.send_due()
            self._is_left = await self.store.has_any()

    def note_change(self, principal: str, mount: str, *, is_over: bool = False) -> None:
        """A person has connected a mount here, or ended that (`is_over`): all servers on the state act on it."""
        self.take_change(principal, mount, is_over=is_over)
        self._share(principal, mount, is_over)

    def take_change(self, principal: str, mount: str, *, is_over: bool = False) -> None:
        """A person has connected a mount, or ended that, at whichever server: nothing in memory counts."""
        if (tokens := self._tokens.get(mount)) is not None:
            tokens.forget(principal)
        self._on_change(principal, mount, is_over)
        self._watchers.notify(principal)

    def note_loss(self) -> None:
        """What was done at other servers may have been missed: the state says more."""
        for tokens in self._tokens.values():
            tokens.forget_all()
        self._watchers.notify_all()

    def watch(self, principal: str, notify: Callable[[], None]) -> Callable[[], None]:
        """Call `notify` at each change of a person's connections here. Return a function that stops this."""
        return self._watchers.watch(principal, notify)

    async def close(self) -> None:
        """Wait a moment for what is being revoked."""
        if self._revoking:
            await asyncio.wait(self._revoking, timeout=REVOKE_WITHIN)

    def _revoke_soon(self, held: MountConnection) -> "asyncio.Task[None]":
        task = asyncio.get_running_loop().create_task(self._revoke(held))
        self._revoking.add(task)
        task.add_done_callback(self._revoking.discard)
        return task

    async def _revoke(self, held: MountConnection) -> None:
        if held.signed_in is not None and not await send_in_time(self._send_revocation, held):
            log.info("the identity provider took no revocation of what it gave a person who is gone, or no mount needs")

    async def _send_revocation(self, held: MountConnection) -> bool:
        """Return whether the tokens are revoked, or nobody can do so. Raises SignInFault."""
        if held.mount == IDENTITY:
            return self.identities is not None and await self.identities.revoke(held)
        asked = held.signed_in
        if asked is None:
            return True
        config = self._configs.get(held.mount)
        if config is not None:
            client = await fill_in_secret(asked.client, config, self._find_client_secret)
            asked = replace(asked, client=client)
        return await requests.revoke(OAuthRequests(asked.resource), asked)

    def _find_link(self, mount: str) -> str:
        return f"{self.public_url}/mounts/connect?name={quote(mount)}" if self.public_url else ""

    async def _find_client_secret(self, config: MountConfig) -> str:
        """Return the secret of the operator's client. Raises SignInFault."""
        names = secret_references.find_names([config.client_secret])
        try:
            found = await self._secrets.find(TEAM, names)
            values = {name: self._secrets.open(each) for name, each in found.items()}
        except StateError as error:
            raise SignInFault(error.text, "SECRET_UNREADABLE") from None
        if missing := sorted(names.difference(values)):
            raise SignInFault(f"the secret {missing[0]} is not set: its operator has to", "SECRET_MISSING")
        return filling.fill_in(config.client_secret, values)

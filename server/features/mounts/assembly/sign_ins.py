"""Make the sign-ins of one server once a mount or a page needs them."""

from collections.abc import Callable
from typing import TYPE_CHECKING

from toolgate.server.app.host import AppHost
from toolgate.server.base.bus.bus import Bus
from toolgate.server.features.mounts.assembly.sharing import ChangeSharing, PersonChange
from toolgate.server.features.mounts.config.mount_config import MountConfig
from toolgate.server.features.mounts.kept_secrets.secret_store import SecretStore
from toolgate.server.features.mounts.mount.sign_in_waits import PartCheck, SignInWaits
from toolgate.server.features.mounts.openers import TokenSources, create_client_tokens, create_person_tokens

TOPIC = "mount-sign-ins"

if TYPE_CHECKING:
    from toolgate.server.features.mounts.grants.identities import Identities
    from toolgate.server.features.mounts.sign_in.service import SignInService


class LazySignIns:
    """The sign-ins at all mounts. `on_change(principal, mount, is_over)` as that of `SignInService`."""

    def __init__(self, host: AppHost, on_change: Callable[[str, str, bool], None]) -> None:
        self._host = host
        self._on_change = on_change
        self._service: SignInService | None = None
        self._sharing: ChangeSharing | None = None  # with other servers on the state
        self._identities: Identities | None = None

    @property
    def public_url(self) -> str:
        """The URL of the pages, or "" without any."""
        return self._service.public_url if self._service is not None else ""

    def open(self) -> "SignInService":
        from toolgate.server.auth.principal_names import PrincipalNames  # start-up: few mounts need them
        from toolgate.server.features.mounts.sign_in.service import SignInService
        from toolgate.server.features.mounts.sign_in.store import ConnectionStore

        if self._service is None:
            store, keys = self._host.store(), self._host.keys()
            self._service = SignInService(
                ConnectionStore(store, keys),
                SecretStore(store, keys),
                self._host.config.name,
                self._on_change,
                PrincipalNames(store).find_label,
                self._share,
            )
        return self._service

    def share_with(self, bus: Bus) -> None:
        """Tell the other servers on the state, and hear of them."""
        self._sharing = ChangeSharing(bus, TOPIC, self._take, self._note_loss)

    def take_pages(self, public_url: str) -> None:
        """Take the URL of the pages, and have people's sign-ins at an identity provider kept while a mount asks."""
        from toolgate.server.auth.login.providers import OpenIdProvider  # start-up, as above

        self.open().public_url = public_url if self._host.has_sign_in_page else ""
        for provider in self._host.identity_providers:
            if isinstance(provider, OpenIdProvider):
                self._open_identities().use(provider, public_url)

    def create_tokens(self, config: MountConfig) -> TokenSources | None:
        """Return what the requests of a mount carry, if it says how they get tokens."""
        match config.auth:
            case "oauth":
                return self.open().open_tokens(config)
            case "client_credentials":
                return create_client_tokens(config)
            case "exchange":
                identities = self._open_identities()
                identities.open_mount(config)
                return create_person_tokens(config, identities)
            case _:
                return None

    def create_waits(self, config: MountConfig, check: PartCheck) -> SignInWaits | None:
        """Return what has calls wait where each person signs in."""
        return SignInWaits(self.open().create_elicitation(config), check) if config.auth == "oauth" else None

    async def close_mount(self, config: MountConfig) -> None:
        """Forget a mount that is served no more."""
        if self._identities is not None:
            self._identities.close_mount(config)
        if self._service is not None:
            await self._service.close_tokens(config)

    async def close(self) -> None:
        if self._service is not None:
            await self._service.close()
        if self._identities is not None:
            await self._identities.close()

    def _share(self, principal: str, mount: str, is_over: bool) -> None:
        if self._sharing is not None:
            self._sharing.tell(PersonChange(principal, mount, is_over))

    def _take(self, change: PersonChange) -> None:
        if self._service is not None:
            self._service.take_change(change.principal, change.mount, is_over=change.is_over)

    def _note_loss(self) -> None:
        if self._service is not None:
            self._service.note_loss()

    def _open_identities(self) -> "Identities":
        from toolgate.server.features.mounts.grants.identities import Identities  # start-up, as above

        if self._identities is None:
            service = self.open()
            service.identities = self._identities = Identities(service.store)
        return self._identities

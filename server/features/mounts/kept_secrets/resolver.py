"""Fill the secrets of a person into the configuration of one mount."""

from collections.abc import Collection

import msgspec
from msgspec.structs import replace

from toolgate.server.base.errors import StateError
from toolgate.server.base.principals.principal import LOCAL_NAME
from toolgate.server.features.mounts.config import secret_references
from toolgate.server.features.mounts.config.mount_config import MountConfig
from toolgate.server.features.mounts.kept_secrets import filling
from toolgate.server.features.mounts.kept_secrets.secret_store import SecretError, SecretStore, StoredSecret
from toolgate.server.features.mounts.upstream.errors import MountError
from toolgate.server.features.mounts.upstream.http_client import list_secrets

MAX_PRINCIPALS = 10_000


class ResolvedMount(msgspec.Struct, frozen=True):
    """A mount with the values of its secrets. `values` are not repeated to anybody. `owner`: whose token its requests
    carry, or "" for one that all share."""

    config: MountConfig
    values: Collection[str] = ()
    owner: str = ""


class FoundSecrets(msgspec.Struct, frozen=True):
    """The secrets of one mount that hold for a principal, sealed. `missing`: the names without one. `is_personal`:
    whether what they open is the principal's alone."""

    stored: tuple[StoredSecret, ...]
    missing: tuple[str, ...]
    is_personal: bool


class SecretResolver:
    """The secrets of one mount that names some."""

    def __init__(self, config: MountConfig, secrets: SecretStore) -> None:
        self._config = config
        self._secrets = secrets
        self._names = find_secret_names(config)
        self._last: dict[str, FoundSecrets] = {}  # by principal

    async def find(self, principal: str) -> FoundSecrets:
        """Return what holds for a principal, "" for a conversation that all share. Raises MountError."""
        own_only = self._needs_own(principal)
        try:
            found = await self._secrets.find(principal, self._names, own_only=own_only)
        except StateError as error:
            raise MountError("SECRET_UNREADABLE", f"its secrets can't be read: {error.text}") from None
        missing = tuple(sorted(self._names.difference(found)))
        is_personal = own_only or any(each.principal for each in found.values())
        self._last.pop(principal, None)
        if len(self._last) >= MAX_PRINCIPALS:
            del self._last[next(iter(self._last))]
        stored = tuple(found[name] for name in sorted(found))
        return self._last.setdefault(principal, FoundSecrets(stored, missing, is_personal))

    def recall(self, principal: str) -> FoundSecrets | None:
        """Return what was found for a principal last."""
        return self._last.get(principal)

    def forget(self, principal: str) -> None:
        self._last.pop(principal, None)

    def is_personal(self, principal: str) -> bool:
        """Return whether what was found for a principal last opens what is the principal's alone."""
        last = self._last.get(principal)
        return self._needs_own(principal) if last is None else last.is_personal

    def fill_in(self, found: FoundSecrets) -> ResolvedMount:
        """Return the mount with them. Raises MountError."""
        if found.missing:
            raise _create_missing(found)
        try:
            values = {each.name: self._secrets.open(each) for each in found.stored}
        except SecretError as error:
            raise MountError("SECRET_UNREADABLE", error.text) from None
        config = self._config
        env = {name: filling.fill_in(text, values) for name, text in config.env.items()}
        headers = {name: filling.fill_in_header(name, text, values) for name, text in config.headers.items()}
        url = filling.fill_in_url(config.url, values) if config.url else ""
        secret = filling.fill_in(config.client_secret, values) if config.fills_client_secret else config.client_secret
        hidden = {*values.values(), *map(filling.encode, values.values())}
        return ResolvedMount(replace(config, env=env, headers=headers, url=url, client_secret=secret), hidden)

    def _needs_own(self, principal: str) -> bool:
        """Whether the team's do not count. Who calls without a sign-in is the team."""
        return self._config.needs_own_secrets and principal != LOCAL_NAME


def _create_missing(found: FoundSecrets) -> MountError:
    name = found.missing[0]
    if not found.is_personal:
        return MountError("SECRET_MISSING", f"the secret {name} is not set: toolgate secret set {name} sets it")
    remedy = f"set it on the first page of this server, or have its operator run: toolgate secret set {name} --for YOU"
    return MountError("SECRET_MISSING", f"it needs your own secret {name}: {remedy}")


def list_hidden(mount: ResolvedMount) -> Collection[str]:
    """Return what must not be repeated of a mount's configuration."""
    config = mount.config
    known = (*config.env.values(), *config.args, config.client_secret)
    return [*known, *list_secrets(config.url, config.headers), *mount.values]


def find_secret_names(config: MountConfig) -> frozenset[str]:
    """Return the names of the secrets in the configuration of a mount."""
    client = (config.client_secret,) if config.fills_client_secret else ()
    return secret_references.find_names((*config.env.values(), *config.headers.values(), config.url, *client))

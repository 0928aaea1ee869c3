"""Open conversations with the server of one mount: over a URL, or with a command."""

import asyncio
import hashlib
import socket
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from toolgate.server.app.host import AppHost
from toolgate.server.features.mounts.config.access import create_access
from toolgate.server.features.mounts.config.mount_config import MountConfig
from toolgate.server.features.mounts.install.installation import find_argv
from toolgate.server.features.mounts.kept_secrets.resolver import (
    ResolvedMount,
    SecretResolver,
    find_secret_names,
    list_hidden,
)
from toolgate.server.features.mounts.mount.mount import Opener
from toolgate.server.features.mounts.mount.pool import SessionKey
from toolgate.server.features.mounts.mount.profile import extend_path
from toolgate.server.features.mounts.upstream.connect import OnNotice, open_program, open_url
from toolgate.server.features.mounts.upstream.errors import MountError
from toolgate.server.features.mounts.upstream.http_client import HttpClient, TokenSource
from toolgate.server.features.mounts.upstream.session import UpstreamSession
from toolgate.tools.api.errors import ToolError
from toolgate.tools.workspace.workspace import ProgramStream, Workspace

if TYPE_CHECKING:
    from toolgate.server.features.mounts.grants.identities import Identities

GUARDED = {"PYTHONNOUSERSITE": "1"}  # the home is the person's, and what lies there must not run with the variables

MAX_CLIENTS = 256  # with different secrets, whose idle connections are kept

FindWorkspace = Callable[[str], Awaitable[Workspace]]


class TokenSources(Protocol):
    """The tokens of one mount."""

    def for_mount(self, mount: ResolvedMount) -> TokenSource:
        """Return those of the mount's owner."""
        ...

    def list_recent(self, principal: str) -> Sequence[str]:
        """Return the tokens that a principal's requests carry now, which are not repeated to anybody."""
        ...


class UrlOpener:
    """Conversations share the connections to the URL, where they share its secrets. `tokens`: what requests carry."""

    def __init__(self, own_id: str, tokens: TokenSources | None = None) -> None:
        self._own_id = own_id
        self._tokens = tokens
        self._clients: dict[tuple[object, ...], HttpClient] = {}

    async def open(self, key: SessionKey, mount: ResolvedMount, on_notice: OnNotice) -> UpstreamSession:
        capabilities = extend_path(key.profile.capabilities, self._own_id)
        return await open_url(mount.config, await self._find_client(mount), capabilities, on_notice)

    def list_tokens(self, principal: str) -> Sequence[str]:
        return self._tokens.list_recent(principal) if self._tokens is not None else ()

    async def close(self) -> None:
        for client in self._clients.values():
            await client.close()

    async def _find_client(self, mount: ResolvedMount) -> HttpClient:
        """Return what carries requests with these secrets, and with the token of the mount's owner."""
        config, tokens = mount.config, self._tokens.for_mount(mount) if self._tokens is not None else None
        name: tuple[object, ...] = (config.url, *config.headers.items())
        if tokens is not None:
            name = (*name, mount.owner, config.client_secret)
        found = self._clients.pop(name, None)
        if found is None:
            if len(self._clients) >= MAX_CLIENTS:
                await self._clients.pop(next(iter(self._clients))).close()
            found = HttpClient(config.url, config.headers, mount.values, tokens)
        self._clients[name] = found
        return found


class ProgramOpener:
    """Each conversation has a program of its own, in a sandbox of its own over the workspace of its principal.

    - `find_workspace(principal)` returns it.
    - `state`: the folder in which its program may be installed.
    - `keeps_secrets`: other people's commands must not be able to read the mount's variables.
    """

    def __init__(
        self,
        own_id: str,
        find_workspace: FindWorkspace,
        state: Path | None,
        *,
        keeps_secrets: bool,
    ) -> None:
        self._own_id = own_id
        self._find_workspace = find_workspace
        self._state = state
        self._keeps_secrets = keeps_secrets

    async def open(self, key: SessionKey, mount: ResolvedMount, on_notice: OnNotice) -> UpstreamSession:
        async def start() -> ProgramStream:
            return await self._start(mount.config, key.principal or f"mount-{mount.config.name}")

        capabilities = extend_path(key.profile.capabilities, self._own_id)
        return await open_program(mount.config, start, capabilities, on_notice, list_hidden(mount))

    def list_tokens(self, principal: str) -> Sequence[str]:
        return ()

    async def close(self) -> None:
        """The conversations end their programs themselves."""

    async def _start(self, config: MountConfig, principal: str) -> ProgramStream:
        workspace = await self._find_workspace(principal)
        if config.env and self._keeps_secrets and not workspace.isolates_environment:
            raise MountError(
                "SECRETS_EXPOSED", "its env could be read by commands here: use a sandbox, or leave it out"
            )
        env = config.env if workspace.sandbox == "none" else {**GUARDED, **config.env}
        access = create_access(config)
        if access is not None and (obstacle := access.find_obstacle(workspace.sandbox)) is not None:
            raise MountError("NOT_CONFINED", obstacle)
        argv, shown = [config.command, *config.args], list[Path]()
        if self._state is not None:
            argv, shown = await asyncio.to_thread(find_argv, self._state, config.name, argv)
        shows = [folder for folder in (config.cwd, *shown) if folder is not None and folder.is_dir()]
        try:
            return await workspace.open_program(argv, env=env, cwd=config.cwd, shows=shows, access=access)
        except ToolError as error:
            raise MountError("NOT_STARTED", error.text) from None


def create_opener(host: AppHost, config: MountConfig, tokens: TokenSources | None = None) -> Opener:
    """Return what opens conversations for one mount of a server, with these tokens."""
    own_id = make_id(host)
    if config.url:
        return UrlOpener(own_id, tokens)

    async def find_workspace(principal: str) -> Workspace:
        if (prepare := host.prepare()) is not None:
            await prepare(principal)
        return host.workspaces().get_or_open(principal)

    state = None if host.config.node else host.folder()  # what is installed here is not there
    return ProgramOpener(own_id, find_workspace, state, keeps_secrets=host.signs_in)


def create_client_tokens(config: MountConfig) -> TokenSources:
    """Return the tokens that one mount gets for this server itself."""
    from toolgate.server.features.mounts.grants.client_credentials import ClientCredentials  # start-up: few mounts
    from toolgate.server.features.mounts.grants.granted_tokens import GrantedTokens

    return GrantedTokens(ClientCredentials(config.token_url))


def create_person_tokens(config: MountConfig, identities: "Identities") -> TokenSources:
    """Return the tokens that people get at one mount by the word of their identity provider."""
    from toolgate.server.features.mounts.grants.exchange import EnterpriseGrant, TokenExchange  # start-up, as above
    from toolgate.server.features.mounts.grants.granted_tokens import GrantedTokens

    exchange = TokenExchange(config.token_url, identities) if config.token_url else EnterpriseGrant(config, identities)
    return GrantedTokens(exchange)


def create_resolver(host: AppHost, config: MountConfig) -> SecretResolver | None:
    """Return what finds the secrets that one mount of a server names, or None: it names none."""
    if not find_secret_names(config):
        return None
    from toolgate.server.features.mounts.kept_secrets.secret_store import SecretStore  # start-up

    return SecretResolver(config, SecretStore(host.store(), host.keys()))


def make_id(host: AppHost) -> str:
    """Return what names this server to those that it mounts, and says nothing else of it."""
    place = f"{socket.gethostname()}\0{host.folder().resolve()}"
    return hashlib.sha256(place.encode("utf-8", "surrogateescape")).hexdigest()[:16]

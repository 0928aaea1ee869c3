"""Build what a server with sign-in needs: the resource, the token verifier, the authorization server."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from pathlib import Path
from urllib.parse import urlsplit

import msgspec

from toolgate.server.auth.clients import clients_file
from toolgate.server.auth.grants import list_denied_tokens
from toolgate.server.auth.login.methods import SignInMethods, build_sign_in
from toolgate.server.auth.login.trusted_proxies import PROOF_HEADER, TrustedProxies
from toolgate.server.auth.oauth_server.service import AuthorizationService
from toolgate.server.auth.protected_resource import ProtectedResource
from toolgate.server.auth.revocation_watch import RevocationTopic
from toolgate.server.auth.tokens.access_tokens import OwnTokens, TokenVerifier
from toolgate.server.auth.tokens.external_issuer import ExternalTokens
from toolgate.server.auth.tokens.signing_keys import SigningKeys
from toolgate.server.base.bus.bus import Bus, Counters, Keys
from toolgate.server.base.errors import UsageError
from toolgate.server.base.principals.sign_in_methods import HEADER, parse_method, provider_methods
from toolgate.server.base.text import describe_os_error
from toolgate.server.config.load import Config
from toolgate.server.config.types import is_loopback
from toolgate.server.state.keys.sealed_state import Sealer
from toolgate.server.state.keys.sealing_keys import SealingKeys
from toolgate.server.state.keys.token_file import read_token
from toolgate.server.state.store import Store
from toolgate.tools.api.outbound.fetch import Web
from toolgate.tools.api.regular_file import read_regular_text

MAX_CLIENT_FILE = 64 * 1024  # bytes; it holds an id and a secret
log = logging.getLogger("toolgate.auth")


class Access(msgspec.Struct, frozen=True):
    """What a server with sign-in needs. `tokens`, `keys` and all below are those of our own authorization server; None
    with an external issuer. `close` releases all of it. `revoked` is set when tokens were denied, at any replica."""

    resource: ProtectedResource
    verifier: TokenVerifier
    tokens: OwnTokens | None
    keys: SigningKeys | None
    close: Callable[[], Awaitable[None]]
    authorization: AuthorizationService | None = None
    sign_in: SignInMethods | None = None
    revoked: asyncio.Event | None = None


def open_access(
    config: Config,
    public_url: str,
    sealing_keys: SealingKeys,
    store: Store,
    served: Callable[[], Sequence[str]],
    web: Web,
    bus: Bus,
    create_counters: Callable[[], Counters],
) -> Access:
    """Build access to the server at `public_url`; `served()` returns the scopes there are. `create_counters()` returns
    what limits are counted by. Raises UsageError."""
    own = config.auth == "oauth"
    paths = [row.path for row in config.transports]
    issuer: str = public_url if own else config.auth
    resource = ProtectedResource(public_url, issuer, served, name=config.name, paths=paths)
    return (
        _own(config, resource, sealing_keys, store, served, web, bus, create_counters)
        if own
        else _outside(resource, config.allow_private)
    )


def _own(
    config: Config,
    resource: ProtectedResource,
    sealing_keys: SealingKeys,
    store: Store,
    served: Callable[[], Sequence[str]],
    web: Web,
    bus: Bus,
    create_counters: Callable[[], Counters],
) -> Access:
    keys = SigningKeys(store, Sealer(sealing_keys.find("signing"), None))
    tokens = OwnTokens(resource.issuer, resource.audience, keys, partial(list_denied_tokens, store), now=store.now)
    known = clients_file.read_clients(config.clients) if config.clients is not None else {}
    ways = _sign_in(config, resource.issuer, store, web, bus.keys, create_counters)
    if resource.issuer.startswith("https:") and is_loopback(config.host) and not ways.proxies:
        log.warning(
            "%s is reached through a proxy that --trusted-proxies does not name, so failed sign-ins can't be counted "
            "by address; for a proxy on this machine use --trusted-proxies 127.0.0.1",
            resource.issuer,
        )
    strangers = Web(client_fetch_hosts(config.allow_private, resource.issuer), config.refuse_networks)
    authorization = AuthorizationService(
        resource.issuer,
        store,
        keys,
        sealing_keys.find("questions"),
        tokens,
        served,
        strangers.fetch,
        fetch_trusted=web.fetch,
        can_sign_in=ways.can_sign_in,
        configured_clients=known,
        registration=config.registration,
        client_hosts=config.client_hosts,
        enterprise_issuers=config.enterprise_issuers,
        create_counters=create_counters,
    )

    async def close() -> None:
        await authorization.close()
        await strangers.close()

    revocations = RevocationTopic(bus.topics, tokens)
    return Access(resource, tokens, tokens, keys, close, authorization, ways, revocations.changed)


def client_fetch_hosts(allow_private: Sequence[str], public_url: str) -> list[str]:
    """Return the private addresses that may be fetched for a caller: clients' documents and keys. `--allow-private` is
    for tools, whose callers are signed in. A server that only this machine reaches may fetch from this machine
    (draft-ietf-oauth-client-id-metadata-document section 6)."""
    is_local = is_loopback(urlsplit(public_url).hostname or "")
    return [host for host in allow_private if is_local and is_loopback(host)]


def check_config(config: Config, store: Store) -> None:
    """Raise UsageError for configurations that `open_access` refuses, before the server listens."""
    if config.auth == "oauth":
        if config.clients is not None:
            clients_file.read_clients(config.clients)
        _sign_in(config, "", store, Web())


def describe_forgeable_header(config: Config) -> str:
    """Return how a local process could sign in as any person by the header of `--login header=NAME`, or ""."""
    if config.auth != "oauth" or config.login_header_secret is not None:
        return ""
    if not any(parse_method(way)[0] is HEADER for way in config.login):
        return ""
    own = TrustedProxies(config.trusted_proxies).local_address()
    return f"--trusted-proxies: {own} is this machine, where any process can set the header of --login" if own else ""


PROVE_PROXY = f"name a file with a secret by --login-header-secret, and have the proxy send it in {PROOF_HEADER}"


def check_login_header(config: Config, *, can_commands_reach_host: bool) -> None:
    """Raise UsageError if commands, which reach this machine's network, could sign in as any person; warn if other
    processes could."""
    forged = describe_forgeable_header(config)
    if forged and can_commands_reach_host:
        raise UsageError(f"{forged}, and so can commands: {PROVE_PROXY}")
    if forged:
        log.warning("%s: %s", forged, PROVE_PROXY)


def _sign_in(
    config: Config,
    public_url: str,
    store: Store,
    web: Web,
    keys: Keys | None = None,
    create_counters: Callable[[], Counters | None] = lambda: None,
) -> SignInMethods:
    header: Path | None = config.login_header_secret
    try:
        return build_sign_in(
            store,
            web.fetch,
            public_url,
            config.login,
            _credentials(config),
            config.allow_users,
            config.trusted_proxies,
            config.enterprise_issuers,
            read_token(header, "--login-header-secret") if header is not None else "",
            keys=keys,
            create_counters=create_counters,
            server=config.name,
        )
    except ValueError as error:
        raise UsageError(str(error)) from None


def _credentials(config: Config) -> dict[str, tuple[str, str]]:
    """Return our client ids and secrets at other issuers, from files or `TOOLGATE_<WAY>_ID` and `…_SECRET`. They never
    come from the command line, which every process can read."""
    credentials: dict[str, tuple[str, str]] = {}
    for method in provider_methods():
        file: Path | None = getattr(config, method.client_key)
        id, secret = (config.environment.get(name, "") for name in method.variables)
        if file is not None:
            try:
                words: list[str] = read_regular_text(file, MAX_CLIENT_FILE).split()
                id, secret = (*words, "", "")[:2]
            except OSError as error:
                raise UsageError(f"--{method.client_option}: can't read {describe_os_error(error)}") from None
            except UnicodeDecodeError:
                raise UsageError(f"--{method.client_option}: {file} is not UTF-8 text") from None
        if id:
            credentials[method.name] = (id, secret)
    return credentials


def _outside(resource: ProtectedResource, allow_private: Sequence[str]) -> Access:
    """Return a fetcher that may reach the private host of an issuer that the operator named."""
    web = Web([*allow_private, urlsplit(resource.issuer).hostname or ""])
    tokens = ExternalTokens(resource.issuer, resource.audience, web.fetch)

    async def close() -> None:
        await tokens.close()
        await web.close()

    return Access(resource, tokens, None, None, close)

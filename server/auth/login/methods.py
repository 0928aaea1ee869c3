"""Build the ways to sign in from the options, and decide which people may use them."""

import ipaddress
import json
import logging
import pkgutil
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import msgspec

from toolgate.server.auth.login.accounts import Accounts, PairingCode, Person
from toolgate.server.auth.login.allowlist import UserAllowlist
from toolgate.server.auth.login.providers import Fetch, IdentityProvider
from toolgate.server.auth.login.sessions import LoginSession, LoginSessions, PendingLogins
from toolgate.server.auth.login.trusted_proxies import HEADER_ISSUER, TrustedHeader, TrustedProxies
from toolgate.server.base.principals.sign_in_methods import (
    HEADER,
    PASSWORD,
    external_methods,
    parse_method,
    provider_methods,
)

if TYPE_CHECKING:
    from toolgate.server.base.bus.bus import Counters, Keys
    from toolgate.server.state.store import Store

ACCEPTED, REFUSED, THROTTLED = "accepted", "refused", "throttled"  # results of a sign-in, in the log

log = logging.getLogger("toolgate.auth")


class SignInMethods(msgspec.Struct, frozen=True):
    """The configured ways to sign in. `accounts` and `pairing` are None without the built-in login, `trusted_header`
    without a proxy that signs people in. `enterprise_issuers` name the people a client may act for (ID-JAG)."""

    sessions: LoginSessions
    pending_logins: PendingLogins
    proxies: TrustedProxies = msgspec.field(default_factory=TrustedProxies)
    accounts: Accounts | None = None
    pairing: PairingCode | None = None
    providers: Mapping[str, IdentityProvider] = msgspec.field(default_factory=dict[str, IdentityProvider])
    trusted_header: TrustedHeader | None = None
    enterprise_issuers: frozenset[str] = frozenset()
    counts: Counter[tuple[str, str]] = msgspec.field(default_factory=Counter[tuple[str, str]])  # by (way, outcome)

    def record(self, outcome: str, way: str, address: str, name: str = "") -> None:
        """Count and log a sign-in."""
        self.counts[way, outcome] += 1
        log_sign_in(outcome, way, address, name)

    @property
    def has_page(self) -> bool:
        """Return whether a person can sign in on a page here, not only through a proxy."""
        return self.accounts is not None or bool(self.providers)

    async def find_session(self, secret: str) -> LoginSession | None:
        """Return the session of this secret. It ends if its person may no longer sign in."""
        session = await self.sessions.find(secret)
        if session is None or self.can_sign_in(session.person):
            return session
        await self.sessions.end(secret)
        return None

    def can_sign_in(self, person: Person) -> bool:
        """Return whether a person's method and its allowlist still admit them. The database has the accounts."""
        if person.has_account:
            return self.accounts is not None
        if person.issuer == HEADER_ISSUER:
            return self.trusted_header is not None and self.trusted_header.permits(person)
        for provider in self.providers.values():
            if provider.issuer == person.issuer:
                return provider.permits(person)
        return person.issuer in self.enterprise_issuers

    async def offer_pairing(self) -> str | None:
        """Return None if there is an account. Otherwise the log has a code for creating the first: return the link with
        it, or "" if the code is not new."""
        if self.accounts is None or self.pairing is None or not await self.accounts.is_empty():
            return None
        return await self.pairing.offer()


def log_sign_in(outcome: str, way: str, address: str, name: str = "") -> None:
    """Log a sign-in that was `accepted`, `refused` or `throttled`, on one line for tools like fail2ban. Foreign text
    stands after the address, quoted and escaped."""
    try:
        ip = str(ipaddress.ip_address(address))
    except ValueError:
        ip = "unknown"
    level = logging.INFO if outcome == ACCEPTED else logging.WARNING
    log.log(level, "sign-in %s: from %s by %s%s", outcome, ip, way, f" as {json.dumps(name[:64])}" if name else "")


def build_sign_in(
    store: "Store",
    fetch: Fetch,
    public_url: str,
    ways: Sequence[str],
    credentials: Mapping[str, tuple[str, str]],
    allow_users: Sequence[str],
    trusted_proxies: Sequence[str],
    enterprise_issuers: Sequence[str] = (),
    header_secret: str = "",
    now: Callable[[], float] | None = None,
    keys: "Keys | None" = None,
    create_counters: "Callable[[], Counters | None]" = lambda: None,
    server: str = "",
) -> SignInMethods:
    """Return the ways to sign in, from `--login` (`password`, `oidc=ISSUER`, `github`, `header=NAME`), client ids and
    secrets by way, `--allow-users`, `--trusted-proxies`, `--enterprise-issuers` and `--login-header-secret`.

    keys: of the bus; they hold the hash of the pairing code
    create_counters: returns counters, for the tries of one kind
    server: the server's name

    Raises ValueError, which names the invalid option.
    """
    chosen = _parse_ways(ways)
    external = [method.name for method in external_methods() if method.name in chosen]
    try:
        proxies = TrustedProxies(trusted_proxies)
    except ValueError as error:
        raise ValueError(f"--trusted-proxies: {error}") from None
    try:
        allowlist = UserAllowlist(allow_users, external)
    except ValueError as error:
        raise ValueError(f"--allow-users: {error}") from None
    has_accounts, host = PASSWORD.name in chosen, urlsplit(public_url).hostname or ""
    return SignInMethods(
        sessions=LoginSessions(store, now),
        pending_logins=PendingLogins(store, now, counters=create_counters()),
        proxies=proxies,
        accounts=Accounts(store, create_counters(), now, f"{server} {host}") if has_accounts else None,
        pairing=PairingCode(f"{public_url}/login", keys, create_counters()) if has_accounts else None,
        providers=_build_providers(chosen, credentials, allowlist, fetch),
        trusted_header=_build_trusted_header(chosen, proxies, allowlist, header_secret),
        enterprise_issuers=frozenset(enterprise_issuers),
    )


def _parse_ways(ways: Sequence[str]) -> dict[str, str]:
    """Return the value of each `--login` by its name."""
    chosen: dict[str, str] = {}
    for way in ways or (PASSWORD.name,):
        try:
            method, value = parse_method(way)
        except ValueError as error:
            raise ValueError(f"--login: {error}") from None
        if method.name in chosen:
            raise ValueError(f"--login: {method.name} is given twice")
        chosen[method.name] = value
    return chosen


def _build_providers(
    chosen: Mapping[str, str], credentials: Mapping[str, tuple[str, str]], allowlist: UserAllowlist, fetch: Fetch
) -> dict[str, IdentityProvider]:
    providers: dict[str, IdentityProvider] = {}
    for method in provider_methods():
        if method.name not in chosen:
            continue
        client, secret = credentials.get(method.name, ("", ""))
        if not client or (method.needs_secret and not secret):
            id_variable, secret_variable = method.variables
            raise ValueError(
                f"--login {method.name} needs the id and secret of its client: --{method.client_option} FILE, or "
                f"{id_variable} and {secret_variable}" + ("" if allowlist else "; and --allow-users WHO")
            )
        if not allowlist:
            raise ValueError(f"--login {method.name} needs --allow-users WHO, or * for all people the provider knows")
        create = pkgutil.resolve_name(method.provider)
        providers[method.name] = create(chosen[method.name] or method.issuer, client, secret, allowlist, fetch)
    return providers


def _build_trusted_header(
    chosen: Mapping[str, str], proxies: TrustedProxies, allowlist: UserAllowlist, secret: str
) -> TrustedHeader | None:
    if HEADER.name not in chosen:
        if secret:
            raise ValueError("--login-header-secret needs --login header=NAME")
        return None
    if not proxies:
        raise ValueError("--login header needs --trusted-proxies NET: the address of the proxy that sets the header")
    if not allowlist:
        raise ValueError("--login header needs --allow-users WHO: the people that the proxy may name, or * for all")
    return TrustedHeader(chosen[HEADER.name].lower(), proxies, allowlist, secret)

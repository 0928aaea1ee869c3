"""Say which keys of a mount go together where `auth` says how its requests get their tokens."""

from collections.abc import Iterator, Mapping
from typing import Any

from toolgate.server.features.mounts.config import secret_references
from toolgate.server.features.mounts.config.faults import FaultCode

OAUTH, CLIENT_CREDENTIALS, EXCHANGE = "oauth", "client_credentials", "exchange"
KEYS: Mapping[str, tuple[str, ...]] = {
    OAUTH: ("client_id", "client_secret", "scopes", "audience", "refresh_retry"),
    CLIENT_CREDENTIALS: ("client_id", "client_secret", "scopes", "token_url", "audience"),
    EXCHANGE: ("client_id", "client_secret", "scopes", "token_url", "audience"),
}
NEEDED: Mapping[str, Mapping[str, str]] = {
    CLIENT_CREDENTIALS: {
        "client_id": "name the client that its authorization server has registered",
        "client_secret": 'write "${secret:NAME}", and set it by toolgate secret set NAME',
        "token_url": "name where its authorization server gives tokens, such as https://auth.example.com/token",
    },
    EXCHANGE: {"client_id": "name the client that its authorization server has registered"},
}
NAME_ISSUER = "name the issuer of its authorization server, such as https://auth.example.com"
ALL_KEYS = tuple(dict.fromkeys(key for keys in KEYS.values() for key in keys))

Faults = Iterator[tuple[FaultCode, str]]


def find_auth_faults(rows: Mapping[str, Any]) -> Faults:
    """Yield what does not go with how a mount gets its tokens, and what does not go without it."""
    auth = rows.get("auth")
    if auth is None:
        for key in ALL_KEYS:
            if key in rows:
                kinds = " or ".join(f'"{kind}"' for kind, keys in KEYS.items() if key in keys)
                yield "CONFIG_VALUE", f" {key}: has no effect without auth = {kinds}: remove it"
        return
    if "url" not in rows:
        yield "CONFIG_VALUE", " auth: has no effect beside command: remove it"
    if isinstance(auth, str) and auth in KEYS:
        yield from _find_key_faults(auth, rows)
    headers = rows.get("headers")
    if isinstance(headers, Mapping) and any(str(name).lower() == "authorization" for name in headers):
        yield "CONFIG_VALUE", " auth: its token is the Authorization header: remove that of headers"
    if isinstance(rows.get("url"), str) and secret_references.find_names([rows["url"]]):
        yield "CONFIG_VALUE", " auth: the URL must be the same for all: remove the secret from it"


def _find_key_faults(auth: str, rows: Mapping[str, Any]) -> Faults:
    """Yield which keys are missing beside this `auth`, and which have no effect."""
    if auth != CLIENT_CREDENTIALS and rows.get("per") == "all":
        yield "CONFIG_VALUE", ' auth: nobody signs in for all: remove per = "all"'
    for key in ALL_KEYS:
        if key in rows and key not in KEYS[auth]:
            yield "CONFIG_VALUE", f' {key}: has no effect beside auth = "{auth}": remove it'
    for key, remedy in NEEDED.get(auth, {}).items():
        if key not in rows:
            yield "CONFIG_VALUE", f" {key}: is missing: {remedy}"
    if not rows.get("audience") and _needs_issuer(auth, rows):
        yield "CONFIG_VALUE", f" audience: is missing: {NAME_ISSUER}"
    if auth == OAUTH and "client_secret" in rows and "client_id" not in rows:
        yield "CONFIG_VALUE", " client_secret: client_id is missing"


def _needs_issuer(auth: str, rows: Mapping[str, Any]) -> bool:
    """Return whether what the operator gave would go to any authorization server that the mounted one names: a grant,
    or the client's secret."""
    return "token_url" not in rows if auth == EXCHANGE else auth == OAUTH and "client_secret" in rows

"""Read the clients that an operator lists in a file, for platforms that can't register themselves. TOML or JSON:

[[client]]
id = "gemini"                       # any name that is no URL
name = "Gemini Enterprise"
presets = ["gemini-enterprise"]     # and, or instead, redirect_uris = […]
secret_file = "/run/secrets/gemini" # or secret_sha256 = "…" (hex), or jwks_uri / jwks: then it signs
grant_types = ["authorization_code", "refresh_token"]   # "client_credentials": it may act for itself
scope = "tools:read tools:web"      # its maximum; left out: all scopes served
"""

import re
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from toolgate.server.auth.clients import redirect_uris
from toolgate.server.auth.clients.model import (
    AUTH_METHODS,
    AUTHORIZATION_CODE,
    CLIENT_CREDENTIALS,
    ID_JAG,
    MAX_KEYS,
    REFRESH_TOKEN,
    SECRET_METHODS,
    OAuthClient,
    display_name,
)
from toolgate.server.auth.tokens import jose
from toolgate.server.base.errors import UsageError
from toolgate.server.base.text import describe_os_error, suggest
from toolgate.server.state.rows.grants import hash_secret
from toolgate.tools.api.regular_file import read_regular_text

ID = re.compile(r"(?!p-)[A-Za-z0-9._~-]{1,200}")  # "p-" begins a person's subject, which a client must not imitate
KEYS, SECRET = ("jwks", "jwks_uri"), ("secret", "secret_file", "secret_sha256")
MEMBERS = frozenset(("id", "name", "redirect_uris", "presets", "method", "grant_types", "scope", *KEYS, *SECRET))
GRANTS = frozenset((AUTHORIZATION_CODE, REFRESH_TOKEN, CLIENT_CREDENTIALS, ID_JAG))
MAX_FILE = 16 * 2**20  # bytes: a client with keys of its own has some KiB
MAX_SECRET_FILE = 64 * 1024  # bytes; it holds one line
MIN_SECRET = 16  # characters: guesses come over the network


def read_clients(file: Path) -> dict[str, OAuthClient]:
    """Return the clients in `file`, by id. Raises UsageError, which names the client and the member."""
    try:
        text = read_regular_text(file, MAX_FILE)
        content = msgspec.json.decode(text) if file.suffix == ".json" else tomllib.loads(text)
    except OSError as error:
        raise UsageError(f"--clients: can't read {describe_os_error(error)}") from None
    except (ValueError, RecursionError) as error:
        form = "JSON" if file.suffix == ".json" else "TOML"
        raise UsageError(f"--clients: {file} is not valid {form}: {error}") from None
    listed = content.get("client", content.get("clients")) if isinstance(content, dict) else content
    if not isinstance(listed, list):
        raise UsageError(f"--clients: {file}: it has no list of clients; write one [[client]] for each")
    clients: dict[str, OAuthClient] = {}
    for number, row in enumerate(listed, 1):
        try:
            client = parse_client(row, file.parent)
            if client.id in clients:
                raise ValueError("id: another client has the same id")
        except OSError as error:
            raise UsageError(f"--clients: {file}: client {number}: can't read {describe_os_error(error)}") from None
        except ValueError as error:
            raise UsageError(f"--clients: {file}: client {number}: {error}") from None
        clients[client.id] = client
    return clients


def parse_client(row: Any, folder: Path) -> OAuthClient:
    """Return the client of one row. Raises ValueError and OSError, which name the member."""
    if not isinstance(row, dict) or not isinstance(row.get("id"), str) or not ID.fullmatch(row["id"]):
        raise ValueError("id: must be letters, digits and . _ ~ -, and must not begin with p-")
    unknown = sorted(map(str, row.keys() - MEMBERS))
    if unknown:
        raise ValueError(f"unknown member {unknown[0]!r}{suggest(unknown[0], MEMBERS)}")
    secret = _secret(row, folder)
    jwks, jwks_uri = _keys(row)
    signs = jwks is not None or jwks_uri is not None
    method = row.get("method") or ("private_key_jwt" if signs else "client_secret_basic" if secret else "none")
    if (
        method not in AUTH_METHODS
        or (method in SECRET_METHODS) != (secret is not None)
        or (method == "private_key_jwt") != signs
    ):
        raise ValueError("method: it does not match the secret or the keys that are given")
    grants = frozenset(_texts(row, "grant_types") or (AUTHORIZATION_CODE, REFRESH_TOKEN))
    if not grants <= GRANTS:
        raise ValueError(f"grant_types: must be among {', '.join(sorted(GRANTS))}")
    if method == "none" and grants & {CLIENT_CREDENTIALS, ID_JAG}:
        raise ValueError("grant_types: a client that speaks for itself needs a secret or keys")
    scope = row.get("scope")
    if scope is not None and not isinstance(scope, str):
        raise ValueError('scope: must be text, such as "tools:read tools:web"')
    return OAuthClient(
        id=row["id"],
        kind="configured",
        name=display_name(row.get("name") or row["id"]),
        redirect_uris=_uris(row, needed=AUTHORIZATION_CODE in grants),
        method=method,
        grants=grants,
        scopes=None if scope is None else tuple(scope.split()),
        secret=secret,
        jwks=jwks,
        jwks_uri=jwks_uri,
    )


def _uris(row: Mapping[str, Any], *, needed: bool) -> tuple[str, ...]:
    uris: list[str] = []
    for uri in _texts(row, "redirect_uris"):
        fault = redirect_uris.find_fault(uri, trusted=True)
        if fault is not None:
            raise ValueError(f"redirect_uris: {uri[:200]!r}: {fault}")
        uris.append(uri)
    for preset in _texts(row, "presets"):
        if preset not in redirect_uris.PRESETS:
            known = redirect_uris.PRESETS
            raise ValueError(f"presets: unknown {preset!r}{suggest(preset, known)}; presets are {', '.join(known)}")
        uris.extend(redirect_uris.PRESETS[preset])
    if needed and not uris:
        raise ValueError("redirect_uris or presets: one of them is missing")
    return tuple(uris)


def _secret(row: Mapping[str, Any], folder: Path) -> str | None:
    """Return the digest of the secret."""
    names = [name for name in SECRET if name in row]
    if not names:
        return None
    if len(names) > 1 or not isinstance(row[names[0]], str):
        raise ValueError(f"{names[0]}: must be one text, and only one of {', '.join(SECRET)}")
    value: str = row[names[0]]
    if names[0] == "secret_sha256":
        if not re.fullmatch(r"[0-9a-f]{64}", value):
            raise ValueError("secret_sha256: must be 64 hexadecimal digits in lower case")
        return value
    secret = value if names[0] == "secret" else read_regular_text(folder / value, MAX_SECRET_FILE).strip()
    if len(secret) < MIN_SECRET:
        raise ValueError(f"{names[0]}: must have at least {MIN_SECRET} characters")
    return hash_secret(secret)


def _keys(row: Mapping[str, Any]) -> tuple[Mapping[str, Any] | None, str | None]:
    jwks, jwks_uri = row.get("jwks"), row.get("jwks_uri")
    if jwks is not None and not jose.parse_jwks(jwks, MAX_KEYS):
        raise ValueError("jwks: no key in it can be used")
    if jwks_uri is not None and not (isinstance(jwks_uri, str) and jwks_uri.startswith("https://")):
        raise ValueError("jwks_uri: must be an https URL")
    return jwks, jwks_uri


def _texts(row: Mapping[str, Any], name: str) -> list[str]:
    given = row.get(name, [])
    if not isinstance(given, list) or not all(isinstance(each, str) for each in given):
        raise ValueError(f"{name}: must be a list of texts")
    return given

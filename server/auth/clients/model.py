"""Model OAuth clients, and check what a registration or a metadata document says about one.

Three kinds: `configured` by the operator, `document` (the id is the URL of its metadata), `dynamic` (registered by
itself). The same rules hold for the metadata of all kinds. Source: RFC 7591;
draft-ietf-oauth-client-id-metadata-document; MCP 2026-07-28 basic/authorization/client-registration.
"""

import hmac
import re
import secrets
import unicodedata
from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Any, Literal
from urllib.parse import urlsplit

import msgspec

from toolgate.server.auth.clients import redirect_uris as redirects
from toolgate.server.auth.tokens import jose
from toolgate.server.state.rows import clients as client_rows
from toolgate.server.state.rows.grants import hash_secret

if TYPE_CHECKING:
    from toolgate.server.state.store import Connection
ClientKind = Literal["configured", "document", "dynamic"]

MAX_URIS = 10  # redirect URIs of one client
MAX_NAME = 80  # characters of a name: one line of the consent page
MAX_MARKS = 2  # accents of one letter: Vietnamese and Hebrew need two
# Characters that are invisible but not control or format characters of Unicode; those that show a gap; and all that
# look like the double quotes that our pages put around a name.
IGNORED = re.compile("[\u034f\u17b4\u17b5\u180b-\u180f\ufe00-\ufe0f\U000e0000-\U000e0fff]")
BLANK = frozenset("\u115f\u1160\u2800\u3164\uffa0")
QUOTES = frozenset('"«»“”„‟″‴‶‷❝❞❠〝〞〟＂״˝ʺˮ⁗⹂\U0001f676\U0001f677\U0001f678')
MAX_DEPTH = 16  # of stored metadata; a key set has five levels
MAX_TEXT = 2_000  # characters of any other stored member
MAX_KEYS = 10  # per client: it has one, two during a rotation
MAX_METADATA = 16_384  # characters of a client's stored metadata, with its keys
AUTHORIZATION_CODE, REFRESH_TOKEN, CLIENT_CREDENTIALS = "authorization_code", "refresh_token", "client_credentials"
ID_JAG = "urn:ietf:params:oauth:grant-type:jwt-bearer"
SECRET_METHODS = frozenset(("client_secret_basic", "client_secret_post"))
PROVING_METHODS = ("client_secret_basic", "client_secret_post", "private_key_jwt")  # those that authenticate
AUTH_METHODS = ("none", *PROVING_METHODS)
# Further members stored and returned as they came: text, and links for people.
TEXTS = ("application_type", "software_id", "software_version")
LINKS = ("client_uri", "logo_uri", "tos_uri", "policy_uri")


class ClientRejectedError(Exception):
    """A registration or a document is rejected. The description is a fixed sentence: it repeats no input."""

    def __init__(self, error: str, description: str) -> None:
        super().__init__(description)
        self.error = error
        self.description = description


class ClientUnreachableError(ClientRejectedError):
    """What a client publishes can't be fetched by this server."""


class OAuthClient(msgspec.Struct, frozen=True):
    """An OAuth client. `scopes` apply if a request names none; for a configured client they are also its maximum; None:
    all scopes served. `secret` is a digest."""

    id: str
    kind: ClientKind
    name: str
    redirect_uris: tuple[str, ...]
    method: str = "none"
    grants: frozenset[str] = frozenset((AUTHORIZATION_CODE, REFRESH_TOKEN))
    scopes: tuple[str, ...] | None = None
    secret: str | None = None
    jwks: Mapping[str, Any] | None = None
    jwks_uri: str | None = None

    @property
    def host(self) -> str | None:
        """Return the metadata document's host, which vouches for the name, or None if the client or the operator chose
        it."""
        return urlsplit(self.id).netloc if self.kind == "document" else None

    @property
    def loopback_only(self) -> bool:
        """Return whether any program on the person's machine could claim to be this client."""
        return redirects.is_loopback_only(self.redirect_uris)

    @property
    def sole_redirect_uri(self) -> str | None:
        """Return the client's only redirect URI, which a request may leave out, or None."""
        return self.redirect_uris[0] if len(self.redirect_uris) == 1 and "{id}" not in self.redirect_uris[0] else None

    def accepts_method(self, method: str) -> bool:
        """Return whether the client may use `method`. A secret may come either way: SDKs go by our metadata."""
        return method == self.method or (method in SECRET_METHODS and self.method in SECRET_METHODS)

    def has_secret(self, secret: str) -> bool:
        return self.secret is not None and hmac.compare_digest(self.secret, hash_secret(secret))


def parse_registration(body: object, served: Collection[str]) -> tuple[dict[str, Any], str | None]:
    """Return what is stored of a registration, which is also the answer, and the secret if the client gets one.

    What is not supported is left out (RFC 7591 section 2). Raises ClientRejectedError.
    """
    if not isinstance(body, dict):
        raise ClientRejectedError("invalid_client_metadata", "the body is not a JSON object")
    method = body.get("token_endpoint_auth_method")
    if method not in AUTH_METHODS:
        method = "client_secret_basic" if method is None else "none"  # RFC 7591's default; others don't work here
    metadata = {**_metadata(body, served), "token_endpoint_auth_method": method}
    if method == "private_key_jwt" and not {"jwks", "jwks_uri"} & metadata.keys():
        raise ClientRejectedError("invalid_client_metadata", "private_key_jwt needs jwks or jwks_uri")
    metadata["redirect_uris"] = _usable_uris(body.get("redirect_uris"))
    return _check_size(metadata), secrets.token_urlsafe(32) if method in SECRET_METHODS else None


def parse_metadata_document(body: object, id: str, served: Collection[str]) -> dict[str, Any]:
    """Return what is stored of the metadata document at `id`. Unsupported redirect URIs are left out: the document is
    written for all servers. Raises ClientRejectedError."""
    if not isinstance(body, dict) or body.get("client_id") != id:
        raise ClientRejectedError(
            "invalid_client", "the client_id in the client's metadata document is not the document's URL"
        )
    if not isinstance(body.get("client_name"), str) or not body["client_name"].strip():
        raise ClientRejectedError("invalid_client", "the client's metadata document has no client_name")
    method = body.get("token_endpoint_auth_method", "none")
    if method not in ("none", "private_key_jwt") or body.keys() & {"client_secret", "client_secret_expires_at"}:
        raise ClientRejectedError("invalid_client", "a client with a metadata document can't have a secret")
    metadata = {**_metadata(body, served), "token_endpoint_auth_method": method}
    if method == "private_key_jwt" and not {"jwks", "jwks_uri"} & metadata.keys():
        raise ClientRejectedError("invalid_client", "the client's metadata document has no keys")
    listed = body.get("redirect_uris")
    uris = [uri for uri in listed if redirects.find_fault(uri) is None] if isinstance(listed, list) else []
    if not uris:
        raise ClientRejectedError("invalid_client", "the client's metadata document has no usable redirect URI")
    metadata["redirect_uris"] = list(dict.fromkeys(uris))[:MAX_URIS]
    return _check_size(metadata)


def find_client(connection: "Connection", configured: Mapping[str, OAuthClient], id: str) -> OAuthClient | None:
    """Return the client with that id, of any kind. Runs inside a transaction."""
    if id in configured:
        return configured[id]
    row = client_rows.find_client(connection, id)
    return client_from_row(row) if row is not None else None


def client_from_row(row: Any) -> OAuthClient:
    """Return the client of a row from `parse_registration` or `parse_metadata_document`."""
    metadata = msgspec.json.decode(row.metadata)
    return OAuthClient(
        id=row.id,
        kind=row.kind,
        name=metadata["client_name"],
        redirect_uris=tuple(metadata["redirect_uris"]),
        method=metadata["token_endpoint_auth_method"],
        grants=frozenset(metadata["grant_types"]),
        scopes=tuple(metadata["scope"].split()) if "scope" in metadata else None,
        secret=row.secret,
        jwks=metadata.get("jwks"),
        jwks_uri=metadata.get("jwks_uri"),
    )


def is_document_url(id: str) -> bool:
    """Return whether a client id is the URL of a metadata document: https, with a path, and without anything that two
    parsers could read differently."""
    match = redirects.WEB.fullmatch(id)
    if match is None or len(id) > 500 or "?" in id or redirects.find_fault(id) is not None:
        return False
    return str(match["host"]).islower() and len(match["rest"] or "") > 1 and "%" not in id


def display_name(name: object) -> str:
    """Return a name for a page, in quotes on one line. It has no character that is invisible, reverses the text, closes
    the quotes, or (stacked marks) covers the lines around."""
    text = name if isinstance(name, str) else ""
    text = unicodedata.normalize("NFC", text[: 10 * MAX_NAME])
    text = "".join(each for each in text if not IGNORED.match(each) and each not in QUOTES)
    blanked = "".join(" " if unicodedata.category(each)[0] in "CZ" or each in BLANK else each for each in text)
    line = " ".join(_lightly_marked(blanked).split())
    return (line if len(line) <= MAX_NAME else f"{line[: MAX_NAME - 1]}…") or "an unnamed app"


def _lightly_marked(text: str) -> str:
    """Return the text without marks that have no letter before them, and with two marks per letter at most."""
    cleaned, marks = "", MAX_MARKS
    for each in text:
        if unicodedata.category(each)[0] == "M":
            marks += 1
        else:
            marks = MAX_MARKS if each == " " else 0
        if marks <= MAX_MARKS:
            cleaned += each
    return cleaned


def _metadata(body: Mapping[str, Any], served: Collection[str]) -> dict[str, Any]:
    """Return the metadata common to both kinds, with defaults and without nulls."""
    metadata: dict[str, Any] = {
        "client_name": display_name(body.get("client_name")),
        "grant_types": _grant_types(body.get("grant_types")),
        "response_types": ["code"],
    }
    scope = _scope(body.get("scope"), served)
    if scope:
        metadata["scope"] = scope
    metadata.update({name: body[name] for name in TEXTS if _is_text(body.get(name))})
    metadata.update({name: body[name] for name in LINKS if _is_link(body.get(name))})
    if _is_link(body.get("jwks_uri")) and body["jwks_uri"].startswith("https://"):
        metadata["jwks_uri"] = body["jwks_uri"]
    elif isinstance(body.get("jwks"), dict) and isinstance(body["jwks"].get("keys"), list):
        if len(body["jwks"]["keys"]) > MAX_KEYS:
            raise ClientRejectedError("invalid_client_metadata", f"jwks has more than {MAX_KEYS} keys")
        metadata["jwks"] = {"keys": [_public(key) for key in body["jwks"]["keys"] if isinstance(key, dict)]}
    contacts = body.get("contacts")
    if isinstance(contacts, list) and contacts and all(map(_is_text, contacts)):
        metadata["contacts"] = contacts[:MAX_URIS]
    return metadata


def _grant_types(value: object) -> list[str]:
    """Return the grant types for people. Only the operator can configure a client that acts for itself."""
    listed = value if isinstance(value, list) else []
    grants = [grant for grant in (AUTHORIZATION_CODE, REFRESH_TOKEN, ID_JAG) if grant in listed]
    return grants or [AUTHORIZATION_CODE, REFRESH_TOKEN]


def _scope(value: object, served: Collection[str]) -> str:
    words = frozenset(value.split()) if isinstance(value, str) else frozenset[str]()
    return " ".join(scope for scope in served if scope in words)


def _usable_uris(value: object) -> list[str]:
    """Return the redirect URIs that can be used. The answer lacks the others, which tells the client."""
    if not isinstance(value, list) or not value:
        raise ClientRejectedError("invalid_redirect_uri", "redirect_uris is missing or empty")
    if len(value) > MAX_URIS:
        raise ClientRejectedError("invalid_redirect_uri", f"there are more than {MAX_URIS} redirect URIs")
    faults = [redirects.find_fault(uri) for uri in value]
    usable = [uri for uri, fault in zip(value, faults, strict=True) if fault is None]
    if not usable:
        raise ClientRejectedError("invalid_redirect_uri", str(faults[0]))
    return list(dict.fromkeys(usable))


def _check_size(metadata: dict[str, Any]) -> dict[str, Any]:
    try:
        size = len(msgspec.json.encode(metadata)) if _is_flat(metadata) else MAX_METADATA + 1
    except ValueError:  # a lone surrogate
        size = MAX_METADATA + 1
    if size > MAX_METADATA:
        raise ClientRejectedError("invalid_client_metadata", "the client's metadata is too large or too deeply nested")
    return metadata


def _is_flat(value: Any) -> bool:
    """Return whether a value nests no deeper than MAX_DEPTH: Python's own limit differs by version."""
    level = [value]
    for _ in range(MAX_DEPTH):
        level = [
            part
            for each in level
            if isinstance(each, (dict, list))
            for part in (each.values() if isinstance(each, dict) else each)
        ]
    return not level


def _public(key: Mapping[str, Any]) -> dict[str, Any]:
    """Return the public part of a key, in case the client sends its private one."""
    return {name: value for name, value in key.items() if name not in jose.PRIVATE_MEMBERS and value is not None}


def _is_text(value: object) -> bool:
    return isinstance(value, str) and 0 < len(value) <= MAX_TEXT and value.isprintable()


def _is_link(value: object) -> bool:
    return isinstance(value, str) and redirects.find_fault(value) is None and value.startswith("http")

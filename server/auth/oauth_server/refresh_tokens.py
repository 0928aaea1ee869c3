"""Derive a grant's refresh tokens, each from its predecessor.

A token is GRANT.SECRET.MARK, where MARK is HMAC(the grant's own key, SECRET). So it names its grant even after its row
is gone. The mark alone proves nothing: a token is valid only with a row.
"""

import base64
import hmac
import secrets
from typing import TYPE_CHECKING

from toolgate.server.state.rows import grants as grant_rows
from toolgate.server.state.rows.grants import Grant

if TYPE_CHECKING:
    from toolgate.server.state.store import Connection


def first_token(grant: Grant) -> str:
    return _format_token(secrets.token_urlsafe(32), grant)


def derive_successor(token: str, salt: bytes, grant: Grant) -> str:
    """Return the successor of `token`, equally unguessable."""
    return _format_token(_mac(token.encode(), salt), grant)


def find_grant_by_mark(connection: "Connection", token: str) -> Grant | None:
    """Return the grant of a genuine token whose row is gone, or None."""
    id, _, rest = token.partition(".")
    grant = grant_rows.find_grant(connection, id)
    if grant is None:
        return None
    marked = _format_token(rest.partition(".")[0], grant)
    return grant if hmac.compare_digest(marked.encode(), token.encode()) else None


def _format_token(secret: str, grant: Grant) -> str:
    return f"{grant.id}.{secret}.{_mac(grant.family.encode(), secret.encode())}"


def _mac(key: bytes, data: bytes) -> str:
    return base64.urlsafe_b64encode(hmac.digest(key, data, "sha256")).rstrip(b"=").decode()

"""Derive the refresh tokens of one grant, each from the one before.

A token is GRANT.SECRET.MARK, where MARK is HMAC(the grant's own key, SECRET). So it names its grant even when its row
is gone. The mark alone proves nothing: a token is good only with a row.
"""

import base64
import hmac
import secrets
from typing import TYPE_CHECKING

from toolgate.server.state import grant_rows
from toolgate.server.state.grant_rows import Grant

if TYPE_CHECKING:
    from toolgate.server.state.store import Connection


def first_token(grant: Grant) -> str:
    return _format_token(secrets.token_urlsafe(32), grant)


def derive_successor(token: str, salt: bytes, grant: Grant) -> str:
    """The token that follows `token`: as unguessable as that is."""
    return _format_token(_mac(token.encode(), salt), grant)


def find_grant_by_mark(connection: "Connection", token: str) -> Grant | None:
    """The grant, if there is one, that made a token which has no row any more."""
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

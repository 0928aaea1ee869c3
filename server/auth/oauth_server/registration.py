"""Register a client dynamically, in one transaction.

Source: RFC 7591 section 3.
"""

import secrets
from collections.abc import Mapping
from typing import Any

import msgspec

from toolgate.server.auth.oauth_server.requests import DESCRIPTIONS
from toolgate.server.auth.oauth_server.responses import NO_STORE, OAuthResponse, error_response
from toolgate.server.auth.oauth_server.server import AuthlibServer
from toolgate.server.state import client_rows
from toolgate.server.state.grant_rows import hash_secret

MAX_CLIENTS = 50_000  # hosted platforms register anew at each connection; some hundred MiB at the very worst
TOO_MANY = error_response("too_many_requests", DESCRIPTIONS["too_many_requests"])


def register(server: AuthlibServer, metadata: Mapping[str, Any], secret: str | None) -> OAuthResponse:
    """A new client."""
    if not client_rows.make_room(server.connection, "dynamic", MAX_CLIENTS):
        return error_response("temporarily_unavailable", DESCRIPTIONS["temporarily_unavailable"], 503)
    id = secrets.token_urlsafe(16)
    client_rows.save_client(
        server.connection,
        id,
        kind="dynamic",
        metadata=msgspec.json.encode(metadata).decode(),
        secret=hash_secret(secret) if secret is not None else None,
        made_at=server.now,
    )
    response = {"client_id": id, "client_id_issued_at": int(server.now), **metadata}
    if secret is not None:
        response |= {"client_secret": secret, "client_secret_expires_at": 0}  # never
    return OAuthResponse(201, response, NO_STORE)

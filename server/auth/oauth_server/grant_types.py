"""Redeem codes and refresh tokens, each in one transaction: once and whole, even in a race.

Reuse of a refresh token: redeeming a token derives its successor, HMAC(token, salt), with the salt in its row. If the
old token comes again within `GRACE` (a second process, a retry, a lost answer), the caller gets the newest successor.
So the family is one line and never forks. After `GRACE` the token counts as stolen, and the whole family ends. Deriving
a successor takes both the token and the database.

The late token may be the victim's: a thief redeemed it first and has continued for days. So that the family ends then
too, without a row for each use, a token names its family (refresh_tokens.py). A genuine token without a row was
redeemed long ago.

Source: RFC 6749 sections 4.1 and 6; RFC 7636; RFC 8707; RFC 9700 sections 2.1 and 4.14; OAuth 2.1.
"""

import base64
import hashlib
import hmac
import logging
import re
import secrets
from typing import Any

import msgspec

from toolgate.server.auth.clients import model
from toolgate.server.auth.clients.redirect_uris import add_parameters
from toolgate.server.auth.login.accounts import Person, save_person
from toolgate.server.auth.oauth_server import refresh_tokens
from toolgate.server.auth.oauth_server.authlib import AuthorizationCodeGrant, CodeChallenge, RefreshTokenGrant
from toolgate.server.auth.oauth_server.requests import IDENTITY, OAuthRequestError, is_own_resource
from toolgate.server.auth.oauth_server.server import AuthlibClient, AuthlibServer
from toolgate.server.state.rows import clients as client_rows
from toolgate.server.state.rows import grants as grant_rows
from toolgate.server.state.rows.grants import Grant, hash_secret

CODE_LIFETIME = 60.0  # seconds; clients redeem within one second
GRANT_LIFETIME = 90 * 86_400.0  # seconds until a person is asked again, even if tokens were refreshed
GRACE = 90.0  # seconds: covers hosted clients' parallel processes and retries, and leaves a thief little time
MOST_STEPS = 64  # from an old token to its newest successor: no honest client needs more within the grace
CHALLENGE = re.compile(r"[A-Za-z0-9_-]{43}")  # a SHA-256 (RFC 7636 section 4.2)
VERIFIER = re.compile(r"[A-Za-z0-9._~-]{43,128}")

log = logging.getLogger("toolgate.auth")


def check_resource(grant: Any) -> None:
    """Refuse a request for tokens of another resource (RFC 8707 section 2)."""
    if not is_own_resource(grant.request.resources, grant.server.issuer.public_url):
        raise OAuthRequestError("invalid_target")


def check_grant_resource(server: AuthlibServer, grant: Grant) -> None:
    """Refuse a grant for another resource: another server on the same state, or an earlier public URL (RFC 8707 section
    2.2). The grant stays valid there."""
    if not is_own_resource([grant.resource], server.issuer.public_url):
        raise OAuthRequestError("invalid_grant", "The grant belongs to another URL of this server. Connect again.")


class S256Challenge(CodeChallenge):  # type: ignore[misc]  # Authlib has no types
    """PKCE with SHA-256, for all clients: Authlib would notice a missing challenge only at the token endpoint."""

    def validate_code_challenge(self, grant: Any, redirect_uri: str) -> None:
        data = grant.request.payload.data
        if data.get("code_challenge_method") != "S256" or not CHALLENGE.fullmatch(data.get("code_challenge", "")):
            raise OAuthRequestError("invalid_request", "PKCE with code_challenge_method=S256 is required.")

    def validate_code_verifier(self, grant: Any, result: Any) -> None:
        verifier = grant.request.form.get("code_verifier", "")
        if not VERIFIER.fullmatch(verifier):
            raise OAuthRequestError("invalid_request", "The code_verifier is missing or malformed.")
        hashed = base64.urlsafe_b64encode(hashlib.sha256(verifier.encode()).digest()).rstrip(b"=").decode()
        if not hmac.compare_digest(hashed, grant.request.authorization_code.challenge):
            raise OAuthRequestError("invalid_grant")


class StoredCode(msgspec.Struct, frozen=True):
    """A code that can be redeemed. The method names are Authlib's."""

    code: str  # digest
    grant: Grant
    redirect_uri: str  # must be sent again, unless ""
    challenge: str

    def get_redirect_uri(self) -> str:
        return self.redirect_uri

    def get_scope(self) -> str:
        return self.grant.scope


class CodeGrant(AuthorizationCodeGrant):  # type: ignore[misc]  # as above
    TOKEN_ENDPOINT_AUTH_METHODS = model.AUTH_METHODS
    approved_scopes: tuple[str, ...] = ()  # of the requested scopes, by the person

    def create_authorization_response(self, redirect_uri: str, grant_user: Person | None) -> Any:
        """Return the redirect with a new code, or raise for a person who denies. Authlib would rewrite the query of the
        redirect URI (RFC 6749 section 3.1.2)."""
        if grant_user is None:
            raise OAuthRequestError("access_denied", redirect_uri=redirect_uri)
        self.request.user = grant_user
        code = self.generate_authorization_code()
        self.save_authorization_code(code, self.request)
        state = self.request.payload.state
        answer = [("code", code), *([("state", state)] if state else [])]
        return 302, "", [("Location", add_parameters(redirect_uri, answer))]

    def generate_authorization_code(self) -> str:
        return secrets.token_urlsafe(32)

    def save_authorization_code(self, code: str, request: Any) -> None:
        """Store a new grant with its person, scopes and code."""
        person: Person = request.user
        connection, now, client = self.server.connection, self.server.now, request.client.client
        subject, scope = save_person(connection, person, now), " ".join(self.approved_scopes)
        resource = self.server.issuer.tokens.audience[0]
        key = {"subject": subject, "client": client.id, "redirect_uri": self.redirect_uri, "resource": resource}
        grant_id = grant_rows.add_grant(connection, now, GRANT_LIFETIME, scope=scope, **key)
        grant_rows.add_code(
            connection,
            hash_secret(code),
            grant_id=grant_id,
            challenge=request.payload.data["code_challenge"],
            expires_at=now + CODE_LIFETIME,
        )
        grant_rows.save_consent(connection, now, scope, **key)
        client_rows.mark_approved(connection, client.id, now)

    def query_authorization_code(self, code: str, client: AuthlibClient) -> StoredCode | None:
        """Return the client's own code, even if it was redeemed; None for other clients' codes."""
        row = grant_rows.find_code(self.server.connection, hash_secret(code))
        if row is None:
            return None
        grant = grant_rows.find_grant(self.server.connection, row.grant_id)
        if grant is None or grant.client != client.client.id:
            return None
        check_grant_resource(self.server, grant)
        if row.redeemed_at is not None:
            log.warning("a code of client %s came again: what was made of it is revoked", grant.client)
            self.server.end_grant(grant.id)  # the first to redeem it may be the thief (RFC 6749 section 4.1.2)
            return None
        if self.server.now >= row.expires_at or self.server.find_valid_grant(grant.id) is None:
            return None
        # A client of OAuth 2.1 doesn't repeat it (section 10.2 there): PKCE binds the code. What is sent must be right
        sent = self.request.payload.redirect_uri is not None
        return StoredCode(row.code, grant, grant.redirect_uri if sent else "", row.challenge)

    def authenticate_user(self, authorization_code: StoredCode) -> Grant:
        check_resource(self)
        self.server.check_token_limit(authorization_code.grant.subject, authorization_code.grant.client)
        if not grant_rows.redeem_code(self.server.connection, authorization_code.code, self.server.now):
            raise OAuthRequestError("invalid_grant")
        return authorization_code.grant

    def delete_authorization_code(self, authorization_code: StoredCode) -> None:
        """Do nothing: a redeemed code is kept, so that a replay is noticed."""


class StoredRefreshToken(msgspec.Struct, frozen=True):
    """A refresh token from a request. The method names are Authlib's."""

    token: str
    grant: Grant
    redeemed_at: float | None
    salt: bytes | None

    def __repr__(self) -> str:
        return f"<refresh token of {self.grant.id}>"

    def check_client(self, client: AuthlibClient) -> bool:
        return client.client.id == self.grant.client

    def get_scope(self) -> str:
        return self.grant.scope


class RefreshGrant(RefreshTokenGrant):  # type: ignore[misc]  # as above
    TOKEN_ENDPOINT_AUTH_METHODS = model.AUTH_METHODS

    def authenticate_refresh_token(self, refresh_token: str) -> StoredRefreshToken | None:
        row = grant_rows.find_refresh_token(self.server.connection, hash_secret(refresh_token))
        if row is None:
            grant = refresh_tokens.find_grant_by_mark(self.server.connection, refresh_token)
            if grant is not None and grant.client == self.request.client.client.id:
                self._end(grant)
            return None
        grant = grant_rows.find_grant(self.server.connection, row.grant_id)
        if grant is None or not grant.is_valid(self.server.now):
            return None
        check_grant_resource(self.server, grant)
        return StoredRefreshToken(refresh_token, grant, row.redeemed_at, row.salt)

    def _validate_token_scope(self, token: StoredRefreshToken) -> None:
        """Allow no more than was granted (RFC 6749 section 6); unknown scopes are ignored."""
        words = frozenset((self.request.payload.scope or "").split()) - IDENTITY
        if not words <= frozenset(token.grant.scope.split()):
            raise OAuthRequestError("invalid_scope")

    def authenticate_user(self, refresh_token: StoredRefreshToken) -> Grant:
        check_resource(self)
        if self.server.find_valid_grant(refresh_token.grant.id) is None:
            raise OAuthRequestError("invalid_grant")
        self.server.check_token_limit(refresh_token.grant.subject, refresh_token.grant.client)
        return refresh_token.grant

    def issue_token(self, user: Grant, refresh_token: StoredRefreshToken) -> dict[str, Any]:
        following = self._redeem(refresh_token)
        words = (self.request.payload.scope or "").split()
        narrowed = [word for word in user.scope.split() if word in words]
        scope = " ".join(narrowed) if any(word not in IDENTITY for word in narrowed) else user.scope
        token: dict[str, Any] = self.generate_token(user=user, scope=scope, include_refresh_token=False)
        return {**token, "refresh_token": following}

    def revoke_old_credential(self, refresh_token: StoredRefreshToken) -> None:
        """Do nothing: redeeming the token did it."""

    def _redeem(self, presented: StoredRefreshToken) -> str:
        """Return the successor of the token. See the module's docstring."""
        now, connection = self.server.now, self.server.connection
        if presented.redeemed_at is None:
            salt = secrets.token_bytes(32)
            grant_rows.redeem_refresh_token(connection, hash_secret(presented.token), now, salt)
            following = refresh_tokens.derive_successor(presented.token, salt, presented.grant)
            grant_rows.add_refresh_token(connection, hash_secret(following), presented.grant.id)
            return following
        if now - presented.redeemed_at <= GRACE:
            newest = self._newest(presented)
            if newest is not None:
                return newest
        self._end(presented.grant)
        raise OAuthRequestError("invalid_grant")

    def _end(self, grant: Grant) -> None:
        log.warning("a refresh token of client %s came again: its whole family is revoked", grant.client)
        self.server.end_grant(grant.id)

    def _newest(self, presented: StoredRefreshToken) -> str | None:
        token, salt = presented.token, presented.salt
        for _ in range(MOST_STEPS):
            if salt is None:
                return token
            token = refresh_tokens.derive_successor(token, salt, presented.grant)
            row = grant_rows.find_refresh_token(self.server.connection, hash_secret(token))
            if row is None:
                return None
            salt = row.salt
        return None

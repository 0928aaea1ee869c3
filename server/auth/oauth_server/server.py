"""Run Authlib's authorization server in one transaction, with clients and tokens from rows."""

from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from toolgate.server.auth.clients import model, redirect_uris
from toolgate.server.auth.clients.model import OAuthClient
from toolgate.server.auth.login.accounts import Person
from toolgate.server.auth.oauth_server import refresh_tokens
from toolgate.server.auth.oauth_server.authlib import AuthorizationServer, OAuth2Error
from toolgate.server.auth.oauth_server.barred_people import PIECE, CheckedPeople
from toolgate.server.auth.oauth_server.client_auth import Assertion, Credentials, read_credentials
from toolgate.server.auth.oauth_server.requests import OAuthRequest, OAuthRequestError, describe, scopes_for
from toolgate.server.auth.oauth_server.responses import (
    NO_STORE,
    ErrorPage,
    OAuthResponse,
    Redirect,
    error_response,
)
from toolgate.server.auth.oauth_server.verified_inputs import IssuerSettings, VerifiedInputs
from toolgate.server.auth.tokens.access_tokens import EXPIRY_MARGIN, GRANT_CLAIM, GRANT_SCOPE_CLAIM
from toolgate.server.base.principals.principal import GrantKey
from toolgate.server.base.principals.scopes import OFFLINE
from toolgate.server.state.rows import grants as grant_rows
from toolgate.server.state.rows import people as people_rows
from toolgate.server.state.rows.grants import Grant, hash_secret

if TYPE_CHECKING:
    from toolgate.server.state.store import Connection

MAX_CLIENT_TOKENS = 300  # valid ones of one person through one client: one every three seconds, day and night
MAX_TOKENS = 3_000  # of one person through all clients, or of a client for itself: a denial checks each one
MAX_USED = 2_000  # stored assertions of one client: five a second


class AuthlibClient:
    """A client as Authlib sees it. The method names are Authlib's."""

    def __init__(self, client: OAuthClient, served: Sequence[str]) -> None:
        self.client = client
        self._served = served

    def get_client_id(self) -> str:
        return self.client.id

    def get_default_redirect_uri(self) -> str | None:
        return self.client.sole_redirect_uri

    def check_redirect_uri(self, uri: str) -> bool:
        return redirect_uris.is_registered(uri, self.client.redirect_uris)

    def get_allowed_scope(self, asked: str | None) -> str | None:
        return " ".join(scopes_for(self.client, asked, self._served)) or None

    def check_response_type(self, response_type: str) -> bool:
        return response_type == "code" and model.AUTHORIZATION_CODE in self.client.grants

    def check_grant_type(self, grant_type: str) -> bool:
        return grant_type in self.client.grants


class AuthlibServer(AuthorizationServer):  # type: ignore[misc]  # Authlib has no types
    """The server of one transaction. `denied`: access tokens it denied, to be dropped from memory after the commit."""

    def __init__(
        self,
        issuer: IssuerSettings,
        connection: "Connection",
        served: Sequence[str],
        now: float,
        inputs: VerifiedInputs,
    ) -> None:
        super().__init__()
        self.issuer = issuer
        self.connection = connection
        self.served = served
        self.now = now
        self.inputs = inputs
        self.denied: list[str] = []

    # Methods that Authlib calls

    def query_client(self, client_id: str) -> AuthlibClient | None:
        client = model.find_client(self.connection, self.issuer.configured_clients, client_id)
        taken = client is not None and client.kind in self.issuer.client_kinds
        return AuthlibClient(client, self.served) if client is not None and taken else None

    def authenticate_client(self, request: OAuthRequest, methods: list[str], endpoint: str = "token") -> AuthlibClient:
        """Return the client that authenticates, in exactly one way. Raises OAuthRequestError: invalid_client is
        answered with 401, which makes hosted platforms register again."""
        credentials = read_credentials(request)
        caller = self.query_client(credentials.client)
        if caller is None or credentials.method not in methods or not self._is_proven(caller.client, credentials):
            raise OAuthRequestError("invalid_client")
        request.auth_method = credentials.method
        return caller

    def create_oauth2_request(self, request: OAuthRequest) -> OAuthRequest:
        request.check()
        return request

    def validate_requested_scope(self, scope: str | None) -> None:
        """Accept any request: `get_allowed_scope` of the client decides what it gets."""

    def send_signal(self, name: str, *args: Any, **kwargs: Any) -> None:
        """Ignore Authlib's signals."""

    def generate_token(
        self,
        grant_type: str,
        client: AuthlibClient,
        user: Grant | None = None,
        scope: str | None = None,
        expires_in: int | None = None,
        include_refresh_token: bool = True,
    ) -> dict[str, Any]:
        """Return new tokens and store their rows. `user` is their grant, or None for a client's own."""
        subject = user.subject if user is not None else client.client.id
        token = self.mint(client.client.id, subject, scope or "", user)
        if user is not None and include_refresh_token:
            refresh = refresh_tokens.first_token(user)
            grant_rows.add_refresh_token(self.connection, hash_secret(refresh), user.id)
            token["refresh_token"] = refresh
        return token

    def save_token(self, token: Mapping[str, Any], request: OAuthRequest) -> None:
        """Do nothing: `generate_token` has stored them."""

    def handle_response(self, status: int, body: Any, headers: Sequence[tuple[str, str]]) -> OAuthResponse | Redirect:
        fields = dict(headers)
        if "Location" in fields:
            return Redirect(redirect_uris.add_parameters(fields["Location"], [("iss", self.issuer.public_url)]))
        return OAuthResponse(status, body, NO_STORE)

    def handle_error_response(self, request: OAuthRequest, error: OAuth2Error) -> OAuthResponse | Redirect | ErrorPage:
        description = describe(error)
        if error.redirect_uri:
            pairs = [("error", str(error.error)), ("error_description", description)]
            if request.payload.state:
                pairs.append(("state", request.payload.state))
            return self.handle_response(
                302, "", [("Location", redirect_uris.add_parameters(error.redirect_uri, pairs))]
            )
        if request.method == "GET":
            return ErrorPage(str(error.error), description)
        return error_response(str(error.error), description)

    # Methods that our grants call

    def mint(self, client: str, subject: str, scope: str, grant: Grant | None = None) -> dict[str, Any]:
        """Issue an access token for `grant` and store its row."""
        assert self.inputs.signing is not None
        words = scope.split()
        claims = {} if grant is None else {GRANT_CLAIM: grant.id}
        if grant is not None and grant.scope != scope:
            claims[GRANT_SCOPE_CLAIM] = grant.scope
        minted = self.issuer.tokens.mint_by_key(
            self.inputs.signing, subject, client, [word for word in words if word != OFFLINE], **claims
        )
        grant_rows.add_access_token(
            self.connection,
            jti=minted.jti,
            client=client,
            subject=subject,
            grant_id=grant.id if grant is not None else None,
            expires_at=float(minted.expires),
        )
        if grant is not None:
            grant_rows.mark_grant_used(self.connection, grant.id, self.now)
        seconds = self.issuer.tokens.lifetime - EXPIRY_MARGIN
        return {"access_token": minted.token, "token_type": "Bearer", "expires_in": seconds, "scope": " ".join(words)}

    def check_token_limit(self, subject: str, client: str) -> None:
        """Raise OAuthRequestError if these two have too many valid tokens. Call it before redeeming, so that the client
        can retry."""
        counts = grant_rows.count_access_tokens(self.connection, subject, self.now)
        most = MAX_TOKENS if subject == client else MAX_CLIENT_TOKENS
        if counts.get(client, 0) >= most or sum(counts.values()) >= MAX_TOKENS:
            raise OAuthRequestError(
                "too_many_requests", "Too many access tokens are still valid. Use each one until it expires."
            )

    def end_grant(self, id: str) -> None:
        self.denied += grant_rows.revoke_grant(self.connection, id, self.now)

    def find_valid_grant(self, id: str) -> Grant | None:
        """Return the grant if it is valid. It ends here if its person may no longer sign in."""
        grant = grant_rows.find_grant(self.connection, id)
        if grant is None or not grant.is_valid(self.now):
            return None
        if self._may_still_come(grant.subject):
            return grant
        self.end_grant(id)
        return None

    def find_valid_keys(self, rights: Collection[GrantKey]) -> set[GrantKey]:
        """Return the valid keys: see `AuthorizationService.find_valid_keys`."""
        pairs = {right for right in rights if not isinstance(right, str)}
        subjects = {subject for subject, _ in pairs}
        grants = grant_rows.find_valid_grants(self.connection, subjects, self.now)
        ids = {right for right in rights if isinstance(right, str)}
        grants += grant_rows.find_valid_grants_by_id(self.connection, ids, self.now)
        may_come = {subject: self._may_still_come(subject) for subject in {grant.subject for grant in grants}}
        for grant in grants:
            if not may_come[grant.subject]:
                self.end_grant(grant.id)
        valid: set[GrantKey] = set()
        for grant in grants:
            if may_come[grant.subject]:
                valid |= {grant.id, (grant.subject, grant.client)}
        # those just ended are denied
        live = grant_rows.list_active_clients(self.connection, subjects, self.now).intersection(pairs)
        valid |= {(subject, client) for subject, client in live if self._lives(subject, client)}
        return valid.intersection(rights)

    def _may_still_come(self, subject: str) -> bool:
        row = grant_rows.find_person(self.connection, subject)
        return row is not None and self.can_sign_in(_person(row))

    def check_people(self, after: str, since: float) -> CheckedPeople:
        """Check `PIECE` people after a subject, and those who changed since a time. Deny the access tokens of those
        who can't sign in any more."""
        piece = grant_rows.list_people_after(self.connection, after, PIECE)
        rows = {row.subject: row for row in (*piece, *grant_rows.list_people_since(self.connection, since))}
        known_as = [row.known_as for row in rows.values() if row.issuer == people_rows.BUILT_IN]
        accounts = people_rows.find_account_subjects(self.connection, known_as)
        barred = frozenset(
            subject
            for subject, row in rows.items()
            if not self.issuer.can_sign_in(_person(row))
            or (row.issuer == people_rows.BUILT_IN and row.known_as not in accounts)
        )
        self.denied += grant_rows.deny_tokens_of_subjects(self.connection, barred, self.now)
        place = piece[-1].subject if len(piece) == PIECE else ""
        return CheckedPeople(frozenset(rows), barred, place, self.now)

    def can_sign_in(self, person: Person) -> bool:
        """Return whether a person may sign in now, as far as this server knows."""
        return self.issuer.can_sign_in(person) and people_rows.has_account(
            self.connection, person.issuer, person.subject
        )

    def _lives(self, subject: str, client: str) -> bool:
        """Return whether tokens without a grant stay valid: a client's own, or those for a person."""
        if subject == client:
            return self.query_client(client) is not None
        row = grant_rows.find_person(self.connection, subject)
        return row is None or self.can_sign_in(_person(row))

    def _is_proven(self, client: OAuthClient, credentials: Credentials) -> bool:
        if not client.accepts_method(credentials.method):
            return False
        if credentials.method == "private_key_jwt":
            word = self.inputs.client
            return word is not None and word.claims.get("sub") == client.id and self.use_assertion(word, client.id)
        return credentials.method == "none" or self._has_secret(client, credentials)

    def _has_secret(self, client: OAuthClient, credentials: Credentials) -> bool:
        """Return whether the client's secret is right. A secret that was not counted as a guess is refused."""
        guess = self.inputs.guess
        if guess is None:
            return False
        guess.is_right = client.has_secret(credentials.secret)
        return guess.is_right

    def use_assertion(self, word: Assertion, client: str) -> bool:
        """Mark an assertion of `client` as used; return False if it was. Raises OAuthRequestError above their limit."""
        if grant_rows.count_used_assertions(self.connection, client, self.now) >= MAX_USED:
            raise OAuthRequestError("temporarily_unavailable", "The client sends too many assertions. Slow down.")
        return grant_rows.mark_used(self.connection, hash_secret(word.id), word.expires_at, client)


def _person(row: Any) -> Person:
    return Person(row.issuer, row.known_as, row.name, row.email)

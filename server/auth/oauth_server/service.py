"""Serve OAuth: each public method is one request, prepared in the event loop and done in one transaction.

    outcome = await service.open_consent(query, address)        # GET /authorize
    request = await service.find_consent(outcome.id)            # for the consent page; None once answered or expired
    outcome = await service.answer_consent(request.id, person, scopes)
    response = await service.token(form, headers, address)      # POST /token
    valid = await service.find_valid_keys(grant_keys)           # which grants are still valid

Error descriptions are fixed sentences: nothing a caller sent is repeated in one.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from toolgate.server.auth.address_blocks import AddressLimiter
from toolgate.server.auth.clients import model
from toolgate.server.auth.clients.document_copies import DOCUMENT_COPIES, DocumentCopy
from toolgate.server.auth.clients.metadata_documents import MetadataDocuments
from toolgate.server.auth.clients.model import ClientRejectedError, ClientUnreachableError, OAuthClient
from toolgate.server.auth.grants import Grants
from toolgate.server.auth.oauth_server import endpoints
from toolgate.server.auth.oauth_server.authlib import OAuth2Error
from toolgate.server.auth.oauth_server.barred_people import BarredPeople
from toolgate.server.auth.oauth_server.client_auth import TooManyGuessesError, limit_secret_guesses
from toolgate.server.auth.oauth_server.consent_requests import (
    ConsentRequest,
    ConsentRequests,
    SealedConsent,
    check_authorization,
    consent_request_for,
)
from toolgate.server.auth.oauth_server.grant_types import CodeGrant, RefreshGrant, S256Challenge
from toolgate.server.auth.oauth_server.machine_grants import IdJagGrant, MachineGrant
from toolgate.server.auth.oauth_server.requests import (
    DESCRIPTIONS,
    MAX_QUERY,
    OAuthRequest,
    OAuthRequestError,
    describe,
    parse_query,
)
from toolgate.server.auth.oauth_server.responses import (
    ErrorPage,
    FormPairs,
    OAuthResponse,
    Redirect,
    advise,
    error_response,
)
from toolgate.server.auth.oauth_server.server import AuthlibServer
from toolgate.server.auth.oauth_server.verified_inputs import InputVerifier, IssuerSettings, VerifiedInputs
from toolgate.server.auth.tokens.access_tokens import OWN_ISSUER, OwnTokens, UnavailableError
from toolgate.server.auth.tokens.external_issuer import Fetch, IssuerKeys
from toolgate.server.auth.tokens.signing_keys import SigningKeys
from toolgate.server.base.bus.memory_keys import MemoryKeys
from toolgate.server.base.errors import StateError
from toolgate.server.base.principals.principal import GrantKey, Principal, derive_subject
from toolgate.server.state.keys.sealed_state import Sealer, SealingKey
from toolgate.server.state.rows import clients as client_rows
from toolgate.server.state.rows import grants as grant_rows
from toolgate.server.state.store import Store

if TYPE_CHECKING:
    from toolgate.server.auth.login.accounts import Person
    from toolgate.server.base.bus.bus import Counters
    from toolgate.server.state.store import Connection

SWEEP = 600.0  # seconds between two sweeps of expired rows
REGISTRATIONS = 60  # a minute and address: a hosted platform has a few addresses for all of its users
ALL_REGISTRATIONS = 3_000  # a minute: the oldest give way (`MAX_CLIENTS`) after one has had the time to sign in
MALFORMED, ALL_MALFORMED = 600, 6_000  # a minute: malformed registrations, which store nothing
KINDS = {  # --registration → the kinds of clients taken
    "open": frozenset(("configured", "document", "dynamic")),
    "metadata": frozenset(("configured", "document")),
    "dynamic": frozenset(("configured", "dynamic")),
    "closed": frozenset(("configured",)),
}
REGISTER_MEANWHILE = "Meanwhile clients are told to register; --registration dynamic works without documents"
COPIES_ALONE = "Only clients with a built-in document can connect; --registration open lets others register"
UNREADABLE = ErrorPage(
    "invalid_request", f"The authorization request is longer than {MAX_QUERY // 1024} KiB or is not valid UTF-8."
)
EXPIRED = ErrorPage(
    "invalid_request", "This request was already answered or has expired. Connect again from the app.", 410
)
BUSY = ErrorPage("temporarily_unavailable", DESCRIPTIONS["temporarily_unavailable"], 503)

T = TypeVar("T")


class AuthorizationService:
    """The authorization server of one Toolgate. Its state is in `store`; recent documents are in memory.

    - `public_url`: the issuer
    - `keys`: sign the access tokens of `tokens`; `question_key`: seals consent requests
    - `served()`: returns the scopes in the order in which pages show them
    - `fetch`: fetches what clients name; `fetch_trusted`: fetches what the operator named
    - `can_sign_in(person)`: returns whether a person may sign in; asked before a token is issued for them, and again by
      `find_valid_keys` and `revoke_barred_people`
    - `configured_clients`: those of `clients_file`; `registration`: one of KINDS
    - `client_hosts`: the only hosts whose metadata documents are accepted; if empty, any
    - `enterprise_issuers`: issuers whose ID-JAGs are accepted
    - `create_counters()`: returns counters. One counts registrations and documents. Another counts guesses at secrets,
      since their number has no bound
    """

    def __init__(
        self,
        public_url: str,
        store: Store,
        keys: SigningKeys,
        question_key: SealingKey,
        tokens: OwnTokens,
        served: Callable[[], Sequence[str]],
        fetch: Fetch,
        *,
        fetch_trusted: Fetch | None = None,
        can_sign_in: "Callable[[Person], bool]",
        configured_clients: Mapping[str, OAuthClient] | None = None,
        registration: str = "open",
        client_hosts: Sequence[str] = (),
        enterprise_issuers: Sequence[str] = (),
        document_copies: Mapping[str, DocumentCopy] = DOCUMENT_COPIES,
        now: Callable[[], float] | None = None,
        create_counters: "Callable[[], Counters] | None" = None,
    ) -> None:
        kinds = KINDS[registration]
        guesses = limit_secret_guesses(None if create_counters is None else create_counters())
        self._issuer = IssuerSettings(public_url, tokens, configured_clients or {}, kinds, can_sign_in, guesses)
        now = now or store.now
        strangers = MemoryKeys(now) if create_counters is None else create_counters()
        self.grants = Grants(store, self._issuer.configured_clients, tokens.deny, now)
        self._barred = BarredPeople(lambda place, since: self._act(lambda server: server.check_people(place, since)))
        self._store = store
        self._keys = keys
        self._served = served
        self._now = now
        self._questions = ConsentRequests(Sealer(question_key, None), public_url, now)
        self._documents = MetadataDocuments(
            store,
            fetch,
            served,
            client_hosts,
            now,
            copies=document_copies,
            consequence=REGISTER_MEANWHILE if self._registers else COPIES_ALONE,
            counters=strangers,
        )
        self._providers = {issuer: IssuerKeys(issuer, fetch_trusted or fetch, now) for issuer in enterprise_issuers}
        self._inputs = InputVerifier(self._issuer, store, keys, self._documents, self._providers, now)
        self._registering = AddressLimiter("registrations", REGISTRATIONS, ALL_REGISTRATIONS, strangers)
        self._malformed = AddressLimiter("malformed registrations", MALFORMED, ALL_MALFORMED, strangers)
        self._swept = float("-inf")

    # Consent

    async def open_consent(self, query: str, address: str = "") -> ConsentRequest | Redirect | ErrorPage:
        """Check an authorization request, the raw query of GET /authorize; `address` is the browser's.

        The consent request is valid for ten minutes; nothing is stored for it.
        """
        try:
            request = OAuthRequest("GET", parse_query(query), {})
        except ValueError:
            return UNREADABLE
        id = request.payload.client_id or ""
        try:
            await self._check_document(id, address)
        except ClientRejectedError as rejected:
            advised = advise(self._issuer.client_kinds, unreached=isinstance(rejected, ClientUnreachableError))
            return ErrorPage(rejected.error, rejected.description, document=id, advice=advised)
        except (StateError, UnavailableError):
            return BUSY

        def act(server: AuthlibServer) -> ConsentRequest | Redirect | ErrorPage:
            grant = check_authorization(server, request)
            if not isinstance(grant, CodeGrant):
                return grant
            return consent_request_for(grant, *self._questions.seal(query))

        return await self._act_or_report_busy(act)

    async def _check_document(self, id: str, address: str) -> None:
        """Fetch the metadata document of a client whose `id` is the URL of one. Raises ClientRejectedError,
        UnavailableError."""
        if "document" in self._issuer.client_kinds:
            await self._documents.refresh(id, address)
        elif model.is_document_url(id):
            raise ClientRejectedError("invalid_client", "this server does not accept client metadata documents")

    async def find_consent(self, id: str) -> ConsentRequest | None:
        """Return the consent request, or None once it is answered or expired."""
        sealed = self._questions.open(id)
        return await self._act(lambda server: _reopen(server, sealed)) if sealed is not None else None

    async def answer_consent(self, id: str, subject: "Person | None", scopes: frozenset[str]) -> Redirect | ErrorPage:
        """Answer a consent request, and return where to send the browser.

        With `subject` it is approved for the `scopes` that the person ticked. Without a person, or with none of its
        scopes ticked, it is denied. A request is answered once: later answers get `EXPIRED`.
        """
        sealed = self._questions.open(id)
        if sealed is None:
            return EXPIRED

        def act(server: AuthlibServer) -> Redirect | ErrorPage:
            if not grant_rows.mark_used(server.connection, sealed.mark, sealed.expires_at):
                return EXPIRED
            request = OAuthRequest("GET", parse_query(sealed.query), {})
            grant = check_authorization(server, request)
            if not isinstance(grant, CodeGrant):
                return grant
            offer = frozenset(consent_request_for(grant, id, sealed.expires_at).scopes)
            approves = subject is not None and server.can_sign_in(subject) and bool(scopes & offer)
            grant.approved_scopes = tuple(each for each in request.scope.split() if each in scopes or each not in offer)
            answered = server.create_authorization_response(request, subject if approves else None, grant=grant)
            assert isinstance(answered, Redirect | ErrorPage)
            return answered

        return await self._act_or_report_busy(act)

    async def find_remembered_scopes(self, id: str, subject: "Person") -> frozenset[str] | None:
        """Return the scopes of a consent request if the person has approved all of them before, else None.

        The approval was for the same client, redirect URI and resource. Any program on the person's machine could claim
        to be a client on loopback, so such a client is never remembered (AZ-07).
        """
        sealed = self._questions.open(id)
        if sealed is None:
            return None

        def act(server: AuthlibServer) -> frozenset[str] | None:
            question = _reopen(server, sealed)
            if question is None:
                return None
            approved = grant_rows.find_consent(
                server.connection,
                subject=derive_subject(subject.issuer, subject.subject),
                client=question.client.id,
                redirect_uri=question.redirect_uri,
                resource=question.resource,
            )
            scopes = frozenset(question.scopes)
            covers = approved is not None and scopes <= frozenset(approved.split())
            return scopes if covers and not question.client.loopback_only else None

        return await self._act(act)

    # Endpoints for clients

    async def token(self, form: FormPairs, headers: Mapping[str, str], address: str = "") -> OAuthResponse:
        """Answer POST /token; `address` is the caller's, here and below."""

        def act(server: AuthlibServer, request: OAuthRequest) -> OAuthResponse:
            if "grant_type" not in request.form:
                raise OAuthRequestError("invalid_request", "The grant_type is missing.")
            answer: OAuthResponse = server.create_token_response(request)
            return answer

        return await self._respond(form, headers, address, act)

    async def revoke(self, form: FormPairs, headers: Mapping[str, str], address: str = "") -> OAuthResponse:
        """Answer POST /revoke: 200 for an unknown token too."""
        return await self._respond(
            form, headers, address, lambda server, request: server.create_endpoint_response("revocation", request)
        )

    async def introspect(self, form: FormPairs, headers: Mapping[str, str], address: str = "") -> OAuthResponse:
        """Answer POST /introspect, for clients that authenticate."""
        return await self._respond(
            form, headers, address, lambda server, request: server.create_endpoint_response("introspection", request)
        )

    async def register(self, body: Any, address: str) -> OAuthResponse:
        """Answer POST /register."""
        if not self._registers:
            return error_response("access_denied", "This server does not register clients.", 403)
        try:
            metadata, secret = model.parse_registration(body, self._served())
        except ClientRejectedError as rejected:
            if not await self._malformed.take(address):
                return error_response("too_many_requests")
            return error_response(rejected.error, rejected.description)
        if not await self._registering.take(address):
            return error_response("too_many_requests")
        try:
            return await self._act(lambda server: endpoints.register(server, metadata, secret))
        except StateError:
            return error_response("temporarily_unavailable")

    # Public documents

    async def metadata(self) -> dict[str, Any]:
        """Return the metadata document of RFC 8414 and of OpenID Connect Discovery. Raises StateError.

        It offers metadata documents to clients, except while this server can't fetch them and clients can register
        instead.
        """
        self._documents.reachability.retry()
        listed = self._issuer.configured_clients.values()
        grants = [model.AUTHORIZATION_CODE, model.REFRESH_TOKEN]
        if any(model.CLIENT_CREDENTIALS in client.grants for client in listed):
            grants.append(model.CLIENT_CREDENTIALS)
        if self._providers:
            grants.append(model.ID_JAG)
        return endpoints.build_metadata(
            self._issuer.public_url,
            self._served(),
            grants,
            await self._methods(),
            registers=self._registers,
            takes_documents="document" in self._issuer.client_kinds
            and not (self._registers and self._documents.reachability.is_unreachable),
        )

    @property
    def _registers(self) -> bool:
        return "dynamic" in self._issuer.client_kinds

    async def _methods(self) -> Sequence[str]:
        """Return the ways in which clients may authenticate. Where only the operator's clients are accepted, return
        only theirs: a client that finds "none" in the list does not use its secret."""
        if self._issuer.client_kinds & {"dynamic", "document"}:
            return model.AUTH_METHODS
        added = await self._store.read(client_rows.list_clients)
        clients = [
            *self._issuer.configured_clients.values(),
            *(model.client_from_row(row) for row in added if row.kind == client_rows.CONFIGURED),
        ]
        used = [method for method in model.AUTH_METHODS if any(client.accepts_method(method) for client in clients)]
        return used or model.AUTH_METHODS

    async def jwks(self) -> dict[str, Any]:
        return await self._keys.jwks()

    # Revocation

    async def find_valid_keys(self, rights: Collection[GrantKey]) -> set[GrantKey]:
        """Return the keys that are still valid, for what outlasts a token: an open stream, a session, work without its
        caller.

        - A grant's id is valid while its person may sign in and its client can get a new token for it. Other grants of
          the client do not count.
        - A subject and a client are the key where there is no grant: a client acts for itself, or by an identity
          provider's word. The pair is valid while a token of theirs has neither expired nor been denied. Also the
          client must be known, or the person may sign in.
        - The pair is also valid while a grant of theirs is: what an older version opened names no grant.

        One transaction checks all keys. Raises StateError.
        """
        keys = frozenset(rights)
        return await self._act(lambda server: server.find_valid_keys(keys)) if keys else set()

    async def revoke_barred_people(self) -> set[str]:
        """Deny the access tokens of people who can't sign in any more, and return their principals. This process
        refuses the tokens at once, others within `access_tokens.FRESH`. Raises StateError."""
        return {Principal(OWN_ISSUER, subject, "").name for subject in await self._barred.find()}

    async def close(self) -> None:
        await self._documents.close()
        for provider in self._providers.values():
            await provider.close()

    # One request, one transaction

    async def _respond(
        self,
        form: FormPairs,
        headers: Mapping[str, str],
        address: str,
        act: Callable[[AuthlibServer, OAuthRequest], OAuthResponse],
    ) -> OAuthResponse:
        try:
            request = OAuthRequest("POST", form, headers)
            request.check()
            inputs = await self._inputs.prepare(request, address)
            try:
                return await self._act(lambda server: act(server, request), inputs)
            finally:
                await self._inputs.settle_guess(inputs.guess)
        except TooManyGuessesError as error:
            return error_response(str(error.error), wait=error.wait)
        except OAuth2Error as error:
            return error_response(str(error.error), describe(error))
        except ClientRejectedError as rejected:
            return error_response(rejected.error, rejected.description)
        except (StateError, UnavailableError):
            return error_response("temporarily_unavailable")

    async def _act_or_report_busy(self, act: Callable[[AuthlibServer], T]) -> T | ErrorPage:
        try:
            return await self._act(act)
        except StateError:
            return BUSY

    async def _act(self, act: Callable[[AuthlibServer], T], inputs: VerifiedInputs | None = None) -> T:
        """Run `act` in one transaction, with the inputs that were fetched for it. After the commit, the cache drops the
        tokens that it denied."""
        now, served = self._now(), self._served()

        def transaction(connection: "Connection") -> tuple[T, list[str]]:
            server = AuthlibServer(self._issuer, connection, served, now, inputs or VerifiedInputs())
            for grant in (RefreshGrant, MachineGrant, IdJagGrant):
                server.register_grant(grant)
            server.register_grant(CodeGrant, [S256Challenge()])
            server.register_endpoint(endpoints.Revocation)
            server.register_endpoint(endpoints.Introspection)
            return act(server), server.denied

        if now - self._swept >= SWEEP:
            # a transaction of its own: a refusal doesn't undo it
            await self._store.transact(lambda connection: _sweep(connection, now), alone="oauth")
            self._swept = now
        outcome, denied = await self._store.transact(transaction, alone="oauth")
        self._issuer.tokens.deny(denied)
        return outcome


def _reopen(server: AuthlibServer, sealed: SealedConsent) -> ConsentRequest | None:
    """Return the consent request, or None if it was answered or may not be approved any more."""
    if grant_rows.is_used(server.connection, sealed.mark):
        return None
    grant = check_authorization(server, OAuthRequest("GET", parse_query(sealed.query), {}))
    return consent_request_for(grant, sealed.id, sealed.expires_at) if isinstance(grant, CodeGrant) else None


def _sweep(connection: "Connection", now: float) -> None:
    grant_rows.remove_expired(connection, now)
    client_rows.remove_unused_clients(connection, now)

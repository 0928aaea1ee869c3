"""Serve OAuth: each public method is one request, prepared in the event loop and done in one transaction.

    outcome = await service.open_consent(query, address)        # GET /authorize
    request = await service.find_consent(outcome.id)            # for the consent page; None once answered or expired
    outcome = await service.answer_consent(request.id, person, scopes)
    response = await service.token(form, headers, address)      # POST /token
    valid = await service.find_valid_keys(grant_keys)           # which grants may go on

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

SWEEP = 600.0  # seconds between two sweeps of what is over
REGISTRATIONS = 60  # a minute and address: a hosted platform has a few addresses for all of its users
ALL_REGISTRATIONS = 3_000  # a minute: the oldest give way (`MAX_CLIENTS`) after one has had the time to sign in
MALFORMED, ALL_MALFORMED = 600, 6_000  # a minute of those that store nothing
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
    """One for each server. Its state is in `store`, except for what was fetched lately and the rates.

    `public_url` is the issuer; `keys` sign the access tokens of `tokens`; `question_key` seals questions; `served()`
    lists the scopes in the order they are shown. `configured_clients`: those of `clients_file`; `registration`: one of
    KINDS; `client_hosts`: hosts whose metadata documents are taken, none for all; `enterprise_issuers`: issuers whose
    ID-JAG are taken. `fetch` is used for what clients name, `fetch_trusted` for what the operator named. `can_sign_in`
    says whether a person could still sign in; it is asked before anything is issued for them, and again by
    `find_valid_keys` and `revoke_barred_people`. What `create_counters` returns counts registrations and documents;
    another of them counts guesses at secrets, whose number has no bound.
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
        """What became of it: approved by a person for `scopes` of those asked, the rest unticked; with no person, or
        none of the scopes, denied. A question has one answer: the second is a Mistake."""
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
            shown = frozenset(consent_request_for(grant, id, sealed.expires_at).scopes)
            approves = subject is not None and server.can_sign_in(subject) and bool(scopes & shown)
            grant.approved_scopes = tuple(each for each in request.scope.split() if each in scopes or each not in shown)
            answered = server.create_authorization_response(request, subject if approves else None, grant=grant)
            assert isinstance(answered, Redirect | ErrorPage)
            return answered

        return await self._act_or_report_busy(act)

    async def find_remembered_scopes(self, id: str, subject: "Person") -> frozenset[str] | None:
        """The scopes of the question, if this person approved them all before, for the same client, redirect URI and
        resource. Never for a client that any program on the person's machine could be (AZ-07)."""
        sealed = self._questions.open(id)
        if sealed is None:
            return None

        def act(server: AuthlibServer) -> frozenset[str] | None:
            question = _reopen(server, sealed)
            if question is None:
                return None
            held = grant_rows.find_consent(
                server.connection,
                subject=derive_subject(subject.issuer, subject.subject),
                client=question.client.id,
                redirect_uri=question.redirect_uri,
                resource=question.resource,
            )
            asked = frozenset(question.scopes)
            known = held is not None and asked <= frozenset(held.split())
            return asked if known and not question.client.loopback_only else None

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
            kept, secret = model.parse_registration(body, self._served())
        except ClientRejectedError as rejected:
            if not await self._malformed.take(address):
                return error_response("too_many_requests")
            return error_response(rejected.error, rejected.description)
        if not await self._registering.take(address):
            return error_response("too_many_requests")
        try:
            return await self._act(lambda server: endpoints.register(server, kept, secret))
        except StateError:
            return error_response("temporarily_unavailable")

    # Public documents

    async def metadata(self) -> dict[str, Any]:
        """The document of RFC 8414, and of OpenID Connect Discovery. Metadata documents of clients are not told of
        while this server can't reach them, where clients can register instead. Raises StateError."""
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
        """Return the ways in which clients may authenticate. Where only the operator's clients are taken, these are
        theirs: clients that find "none" among them don't use their secret."""
        if self._issuer.client_kinds & {"dynamic", "document"}:
            return model.AUTH_METHODS
        added = await self._store.read(client_rows.list_clients)
        known = [
            *self._issuer.configured_clients.values(),
            *(model.client_from_row(row) for row in added if row.kind == client_rows.CONFIGURED),
        ]
        used = [method for method in model.AUTH_METHODS if any(client.accepts_method(method) for client in known)]
        return used or model.AUTH_METHODS

    async def jwks(self) -> dict[str, Any]:
        return await self._keys.jwks()

    # Revocation

    async def find_valid_keys(self, rights: Collection[GrantKey]) -> set[GrantKey]:
        """Those of these that still hold: for what lasts longer than a token (an open stream, a session, work that goes
        on without its caller).

        A grant does as long as its person may still come and its client can have a new token of it whenever it likes;
        other grants of the same client do not help. A subject and a client, where there is no grant (a client for
        itself, what an identity provider said for a person), do as long as a token that they got has neither expired
        nor been denied, and the client for itself is still known, or the person may still come; and as long as a grant
        of theirs does, since what was opened by an older version names none. All are looked at in one transaction.
        Raises StateError.
        """
        asked = frozenset(rights)
        return await self._act(lambda server: server.find_valid_keys(asked)) if asked else set()

    async def revoke_barred_people(self) -> set[str]:
        """The principals of people who have been here, and could not sign in any more. Their access tokens are denied:
        here at once, elsewhere within `access_tokens.FRESH`. Raises StateError."""
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
        """Run `act` in one transaction, with what was fetched for it. What it denied is forgotten when it is done."""
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
    """The question that waits, unless it has been answered, or may not be asked any more."""
    if grant_rows.is_used(server.connection, sealed.mark):
        return None
    grant = check_authorization(server, OAuthRequest("GET", parse_query(sealed.query), {}))
    return consent_request_for(grant, sealed.id, sealed.expires_at) if isinstance(grant, CodeGrant) else None


def _sweep(connection: "Connection", now: float) -> None:
    grant_rows.remove_expired(connection, now)
    client_rows.remove_unused_clients(connection, now)

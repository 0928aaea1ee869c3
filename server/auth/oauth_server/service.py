"""The authorization server: the requests it takes, each prepared in the loop and done in one transaction."""

import asyncio
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from toolgate.server.auth.address_blocks import AddressLimiter
from toolgate.server.auth.clients.document_copies import DOCUMENT_COPIES, DocumentCopy
from toolgate.server.auth.clients.metadata_documents import MetadataDocuments
from toolgate.server.auth.clients.model import (
    AUTH_METHODS,
    AUTHORIZATION_CODE,
    CLIENT_CREDENTIALS,
    ID_JAG,
    REFRESH_TOKEN,
    ClientRejectedError,
    ClientUnreachableError,
    OAuthClient,
    client_from_row,
    find_client,
    is_document_url,
    parse_registration,
)
from toolgate.server.auth.grants import Grants, GrantSummary
from toolgate.server.auth.oauth_server import metadata
from toolgate.server.auth.oauth_server import registration as registering
from toolgate.server.auth.oauth_server.advice import advise
from toolgate.server.auth.oauth_server.authlib import OAuth2Error
from toolgate.server.auth.oauth_server.authorize import check_authorization, consent_request_for
from toolgate.server.auth.oauth_server.client_auth import (
    Assertion,
    Credentials,
    read_credentials,
    read_unverified_claims,
    verify_assertion,
)
from toolgate.server.auth.oauth_server.consent_requests import ConsentRequest, ConsentRequests, SealedConsent
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
    AuthorizationErrorPage,
    FormPairs,
    OAuthResponse,
    Redirect,
    error_response,
)
from toolgate.server.auth.oauth_server.revoke_introspect import Introspection, Revocation
from toolgate.server.auth.oauth_server.server import AuthlibServer, IssuerSettings, VerifiedInputs
from toolgate.server.auth.tokens.access_tokens import OwnTokens, TemporarilyUnavailableError
from toolgate.server.auth.tokens.jose import InvalidTokenError, read_header
from toolgate.server.auth.tokens.jwks import Fetch, IssuerKeys
from toolgate.server.auth.tokens.signing_keys import SigningKeys
from toolgate.server.principal import GrantKey, derive_subject
from toolgate.server.state import client_rows, grant_rows
from toolgate.server.state.sealed_state import Sealer
from toolgate.server.state.store import StateError, Store
from toolgate.tools.api.threads import Threads, ThreadsBusyError

if TYPE_CHECKING:
    from toolgate.server.auth.login.accounts import Person
    from toolgate.server.state.store import Connection

SWEEP = 600.0  # seconds between two sweeps of what is over
REGISTRATIONS = 60  # a minute and address: a hosted platform has a few addresses for all of its users
ALL_REGISTRATIONS = 3_000  # a minute: the oldest give way (`MAX_CLIENTS`) after one has had the time to sign in
MALFORMED, ALL_MALFORMED = 600, 6_000  # a minute of those that store nothing: they cost nobody else anything
PROVIDER_PAUSE = 30.0  # seconds between two looks for a provider's key that is not known
SIGNATURES = 4  # verified at once; each takes a thread less than a millisecond
SIGNATURE_WAIT = 5.0  # seconds for one's turn
ID_JAG_TYPE = ("oauth-id-jag+jwt",)
KINDS = {  # --registration → the kinds of clients taken
    "open": frozenset(("configured", "document", "dynamic")),
    "metadata": frozenset(("configured", "document")),
    "dynamic": frozenset(("configured", "dynamic")),
    "closed": frozenset(("configured",)),
}
REGISTERING = (  # while no document can be fetched
    "Clients are told to register meanwhile; --registration dynamic does without documents"
)
DOCUMENTS_ALONE = "Other clients than those copied here stay unknown; --registration open lets them register"
UNREADABLE = AuthorizationErrorPage(
    "invalid_request", f"The authorization request is longer than {MAX_QUERY // 1024} KiB, or can not be read as UTF-8."
)
EXPIRED = AuthorizationErrorPage(
    "invalid_request", "This question has been answered already, or has expired: start again.", 410
)
BUSY = AuthorizationErrorPage("temporarily_unavailable", DESCRIPTIONS["temporarily_unavailable"], 503)

T = TypeVar("T")


class AuthorizationService:
    """One a server. All of its state is in `store`, but for what was fetched lately and the rates.

    `public_url` is the issuer. `tokens` mints access tokens by `keys`. `served()` gives the scopes there are, in the
    order they are shown. `configured`: the clients of `configured.clients(file)`. `registration`: one of KINDS.
    `client_hosts`: whose documents are taken; none: everybody's. `providers`: issuers whose ID-JAG are taken. `fetch`:
    `Web.fetch`, of what clients name; `fetch_trusted`: of what the operator named. `well_known`: copies of documents.
    `may_come`: whether a person could still sign in (`SignIn.may_come`): asked before anything is given for them, also
    where an identity provider asks for them, and from then on by `standing` and `see_off`.
    """

    def __init__(
        self,
        public_url: str,
        store: Store,
        keys: SigningKeys,
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
        now: Callable[[], float] = time.time,
    ) -> None:
        self._issuer = IssuerSettings(public_url, tokens, configured_clients or {}, KINDS[registration], can_sign_in)
        self.grants = Grants(store, self._issuer.configured_clients, tokens.deny, now)
        self._store = store
        self._keys = keys
        self._served = served
        self._now = now
        self._questions = ConsentRequests(Sealer(store.folder / "keys" / "questions", None), public_url, now)
        self._documents = MetadataDocuments(
            store,
            fetch,
            served,
            client_hosts,
            now,
            copies=document_copies,
            consequence=REGISTERING if self._registers else DOCUMENTS_ALONE,
        )
        self._providers = {issuer: IssuerKeys(issuer, fetch_trusted or fetch, now) for issuer in enterprise_issuers}
        self._turns, self._threads = asyncio.Semaphore(SIGNATURES), Threads(SIGNATURES)
        self._registering = AddressLimiter(REGISTRATIONS, ALL_REGISTRATIONS, now)
        self._malformed = AddressLimiter(MALFORMED, ALL_MALFORMED, now)
        self._swept = float("-inf")

    # A person is asked

    async def open_consent(self, query: str, address: str = "") -> ConsentRequest | Redirect | AuthorizationErrorPage:
        """Look at an authorization request, the raw query of GET /authorize; `address` is the browser's. A Question
        waits for ten minutes, and nothing is stored for it."""
        try:
            request = OAuthRequest("GET", parse_query(query), {})
        except ValueError:
            return UNREADABLE
        id = request.payload.client_id or ""
        try:
            await self._check_document(id, address)
        except ClientRejectedError as rejected:
            advised = advise(self._issuer.client_kinds, unreached=isinstance(rejected, ClientUnreachableError))
            return AuthorizationErrorPage(rejected.error, rejected.description, document=id, advice=advised)
        except (StateError, TemporarilyUnavailableError):
            return BUSY

        def act(server: AuthlibServer) -> ConsentRequest | Redirect | AuthorizationErrorPage:
            grant = check_authorization(server, request)
            if not isinstance(grant, CodeGrant):
                return grant
            return consent_request_for(grant, *self._questions.seal(query))

        return await self._asked(act)

    async def _check_document(self, id: str, address: str) -> None:
        """Have the metadata document of a client whose `id` is the URL of one. Raises Rejected, Unavailable."""
        if "document" in self._issuer.client_kinds:
            await self._documents.refresh(id, address)
        elif is_document_url(id):
            raise ClientRejectedError("invalid_client", "this server takes no metadata documents of clients")

    async def find_consent(self, id: str) -> ConsentRequest | None:
        """The question, as long as it waits for its answer."""
        waiting = self._questions.open(id)
        return await self._act(lambda server: _shown(server, waiting)) if waiting is not None else None

    async def answer_consent(
        self, id: str, subject: "Person | None", scopes: frozenset[str]
    ) -> Redirect | AuthorizationErrorPage:
        """What became of it: approved by a person for `scopes` of those asked, the rest unticked; with no person, or
        none of the scopes, denied. A question has one answer: the second is a Mistake."""
        waiting = self._questions.open(id)
        if waiting is None:
            return EXPIRED

        def act(server: AuthlibServer) -> Redirect | AuthorizationErrorPage:
            if not grant_rows.mark_used(server.connection, waiting.mark, waiting.expires_at):
                return EXPIRED
            request = OAuthRequest("GET", parse_query(waiting.query), {})
            grant = check_authorization(server, request)
            if not isinstance(grant, CodeGrant):
                return grant
            shown = frozenset(consent_request_for(grant, id, waiting.expires_at).scopes)
            approves = subject is not None and server.can_sign_in(subject) and bool(scopes & shown)
            grant.approved_scopes = tuple(
                scope for scope in request.scope.split() if scope in scopes or scope not in shown
            )
            answered = server.create_authorization_response(request, subject if approves else None, grant=grant)
            assert isinstance(answered, Redirect | AuthorizationErrorPage)
            return answered

        return await self._asked(act)

    async def find_remembered_scopes(self, id: str, subject: "Person") -> frozenset[str] | None:
        """The scopes of the question, if this person approved them all before, for the same client, redirect URI and
        resource. Never for a client that any program on the person's machine could be (AZ-07)."""

        waiting = self._questions.open(id)
        if waiting is None:
            return None

        def act(server: AuthlibServer) -> frozenset[str] | None:
            question = _shown(server, waiting)
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

    # A client asks

    async def token(self, form: FormPairs, headers: Mapping[str, str], address: str = "") -> OAuthResponse:
        """POST /token; `address` is the caller's, here and below."""

        def act(server: AuthlibServer, request: OAuthRequest) -> OAuthResponse:
            if "grant_type" not in request.form:
                raise OAuthRequestError("invalid_request", "The grant_type is missing.")
            answer: OAuthResponse = server.create_token_response(request)
            return answer

        return await self._told(form, headers, address, act)

    async def revoke(self, form: FormPairs, headers: Mapping[str, str], address: str = "") -> OAuthResponse:
        """POST /revoke. 200 for a token nobody knows, too."""
        return await self._told(
            form, headers, address, lambda server, request: server.create_endpoint_response("revocation", request)
        )

    async def introspect(self, form: FormPairs, headers: Mapping[str, str], address: str = "") -> OAuthResponse:
        """POST /introspect, for clients that can prove who they are."""
        return await self._told(
            form, headers, address, lambda server, request: server.create_endpoint_response("introspection", request)
        )

    async def register(self, body: Any, address: str) -> OAuthResponse:
        """POST /register."""
        if not self._registers:
            return error_response("access_denied", "This server does not register clients.", 403)
        try:
            kept, secret = parse_registration(body, self._served())
        except ClientRejectedError as rejected:
            taken = self._malformed.take(address)
            return error_response(rejected.error, rejected.description) if taken else registering.TOO_MANY
        if not self._registering.take(address):
            return registering.TOO_MANY
        try:
            return await self._act(lambda server: registering.register(server, kept, secret))
        except StateError:
            return error_response("temporarily_unavailable", DESCRIPTIONS["temporarily_unavailable"], 503)

    # Anybody asks

    async def metadata(self) -> dict[str, Any]:
        """The document of RFC 8414, and of OpenID Connect Discovery. Metadata documents of clients are not told of
        while this server can't reach them, where clients can register instead. Raises StateError."""
        self._documents.reachability.retry()
        listed = self._issuer.configured_clients.values()
        speaks = any(CLIENT_CREDENTIALS in client.grants for client in listed)
        return metadata.build_document(
            self._issuer.public_url,
            self._served(),
            [
                AUTHORIZATION_CODE,
                REFRESH_TOKEN,
                *([CLIENT_CREDENTIALS] if speaks else []),
                *([ID_JAG] if self._providers else []),
            ],
            await self._methods(),
            registers=self._registers,
            takes_documents="document" in self._issuer.client_kinds
            and not (self._registers and self._documents.reachability.is_unreachable),
        )

    @property
    def _registers(self) -> bool:
        return "dynamic" in self._issuer.client_kinds

    async def _methods(self) -> Sequence[str]:
        """The ways in which clients can prove who they are: where nobody comes but the operator's, those of theirs,
        since clients that find "none" among them don't use their secret."""
        if self._issuer.client_kinds & {"dynamic", "document"}:
            return AUTH_METHODS
        added = await self._store.transact(client_rows.list_clients)
        known = [
            *self._issuer.configured_clients.values(),
            *(client_from_row(row) for row in added if row.kind == client_rows.CONFIGURED),
        ]
        return [
            method for method in AUTH_METHODS if any(client.accepts_method(method) for client in known)
        ] or AUTH_METHODS

    async def jwks(self) -> dict[str, Any]:
        return await self._keys.jwks()

    # A person looks at what was granted

    async def list_grants(self, subject: "Person") -> list[GrantSummary]:
        """What a person has granted and still holds, the newest first."""
        return await self.grants.list_grants(subject)

    async def revoke_grant(self, subject: "Person", id: str) -> bool:
        """Take back one of a person's grants: its tokens die, and the client is asked about anew. False: not theirs."""
        return await self.grants.revoke_grant(subject, id)

    # A server asks whether those it serves may go on

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

    async def revoke_barred_people(self) -> list[str]:
        """The subjects of people who have been here, and could not sign in any more. Their access tokens are denied:
        here at once, elsewhere within `tokens.FRESH`. Raises StateError."""
        return await self._act(lambda server: server.revoke_barred_people())

    async def close(self) -> None:
        await self._documents.close()
        for provider in self._providers.values():
            await provider.close()

    # How a request is done

    async def _told(
        self,
        form: FormPairs,
        headers: Mapping[str, str],
        address: str,
        act: Callable[[AuthlibServer, OAuthRequest], OAuthResponse],
    ) -> OAuthResponse:
        try:
            request = OAuthRequest("POST", form, headers)
            request.check()
            fetched = await self._fetched(request, address)
            return await self._act(lambda server: act(server, request), fetched)
        except OAuth2Error as error:
            return error_response(str(error.error), describe(error))
        except ClientRejectedError as rejected:
            return error_response(rejected.error, rejected.description)
        except (StateError, TemporarilyUnavailableError):
            return error_response("temporarily_unavailable", DESCRIPTIONS["temporarily_unavailable"], 503)

    async def _asked(self, act: Callable[[AuthlibServer], T]) -> T | AuthorizationErrorPage:
        try:
            return await self._act(act)
        except StateError:
            return BUSY

    async def _act(self, act: Callable[[AuthlibServer], T], fetched: VerifiedInputs | None = None) -> T:
        """Run `act` in one transaction, with what was fetched for it. What it denied is forgotten when it is done."""
        now, served = self._now(), self._served()

        def transaction(connection: "Connection") -> tuple[T, list[str]]:
            server = AuthlibServer(self._issuer, connection, served, now, fetched or VerifiedInputs())
            for grant in (RefreshGrant, MachineGrant, IdJagGrant):
                server.register_grant(grant)
            server.register_grant(CodeGrant, [S256Challenge()])
            server.register_endpoint(Revocation)
            server.register_endpoint(Introspection)
            return act(server), server.denied

        if now - self._swept >= SWEEP:
            await self._store.transact(lambda connection: _sweep(connection, now))  # alone: a refusal doesn't undo it
            self._swept = now
        outcome, denied = await self._store.transact(transaction)
        self._issuer.tokens.deny(denied)
        return outcome

    async def _fetched(self, request: OAuthRequest, address: str) -> VerifiedInputs:
        """All that must be had, and every signature verified, before the transaction begins: everybody waits for that.
        Raises a Refusal, Rejected, Unavailable, StateError."""
        shown, form = read_credentials(request), request.form
        if "document" in self._issuer.client_kinds and shown.client not in self._issuer.configured_clients:
            await self._documents.refresh(shown.client, address, accept_stale=True)
        signs, is_jag = shown.method == "private_key_jwt", form.get("grant_type") == ID_JAG
        return VerifiedInputs(
            signing=await self._keys.active() if "grant_type" in form else None,
            client=await self._client_said(shown, address) if signs else None,
            person=await self._provider_said(form.get("assertion", "")) if is_jag else None,
            claims=await self._claims(form["token"]) if "token" in form else None,
            address=address,
        )

    async def _client_said(self, shown: Credentials, address: str) -> Assertion | None:
        """The assertion of a client that is known and may sign, verified."""
        client = await self._store.transact(
            lambda connection: find_client(connection, self._issuer.configured_clients, shown.client)
        )
        if client is None or client.kind not in self._issuer.client_kinds or not client.accepts_method(shown.method):
            return None
        keys = await self._documents.find_client_keys(client, shown.secret, address)
        # clients say JWT, client-authentication+jwt or nothing for a type
        return await self._verified(
            partial(verify_assertion, shown.secret, keys, client.id, self._issuer.audience, None)
        )

    async def _provider_said(self, assertion: str) -> Assertion | None:
        """The assertion of a provider that is trusted, verified with the keys of the one it says it is from."""
        issuer = read_unverified_claims(assertion).get("iss")
        provider = self._providers.get(issuer) if isinstance(issuer, str) else None
        if provider is None or not isinstance(issuer, str):
            return None
        await provider.ensure_keys()
        kid = _kid(assertion)
        if kid is not None and all(key.kid != kid for key in provider.keys):
            await provider.refresh_keys(PROVIDER_PAUSE)
        audience, keys = (self._issuer.public_url,), tuple(provider.keys)
        return await self._verified(partial(verify_assertion, assertion, keys, issuer, audience, ID_JAG_TYPE))

    async def _verified(self, verify: Callable[[float], Assertion | None]) -> Assertion | None:
        """What `verify(now)` gives, in a thread of a few: whoever sends signatures holds up nobody else."""
        now = self._now()
        try:
            async with asyncio.timeout(SIGNATURE_WAIT), self._turns:
                return await self._threads.run(lambda: verify(now))
        except (TimeoutError, ThreadsBusyError):
            raise TemporarilyUnavailableError(SIGNATURE_WAIT) from None

    async def _claims(self, token: str) -> dict[str, Any] | None:
        """What an access token says; None when it is none, or not a good one."""
        if token.count(".") != 2:
            return None
        try:
            return await self._issuer.tokens.claims(token)
        except InvalidTokenError:
            return None


def _shown(server: AuthlibServer, waiting: SealedConsent) -> ConsentRequest | None:
    """The question that waits, unless it has been answered, or may not be asked any more."""
    if grant_rows.is_used(server.connection, waiting.mark):
        return None
    grant = check_authorization(server, OAuthRequest("GET", parse_query(waiting.query), {}))
    return consent_request_for(grant, waiting.id, waiting.expires_at) if isinstance(grant, CodeGrant) else None


def _sweep(connection: "Connection", now: float) -> None:
    grant_rows.remove_expired(connection, now)
    client_rows.remove_unused_clients(connection, now)


def _kid(token: str) -> str | None:
    try:
        return read_header(token).get("kid")
    except InvalidTokenError:
        return None

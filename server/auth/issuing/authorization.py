"""The authorization server: the requests it takes, each prepared in the loop and done in one transaction."""

import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from toolgate.server.auth.clients import CODE, ID_JAG, METHODS, OWN, REFRESH, Client, Rejected, find
from toolgate.server.auth.documents import Documents
from toolgate.server.auth.grants import Grants
from toolgate.server.auth.issuing import Answer, Form, Granted, Mistake, Question, Redirect, metadata, registering
from toolgate.server.auth.issuing.asking import consent, question_of
from toolgate.server.auth.issuing.credentials import claims_of, presented
from toolgate.server.auth.issuing.endpoints import Introspection, Revocation
from toolgate.server.auth.issuing.grants import S256, Code, Refresh
from toolgate.server.auth.issuing.library import OAuth2Error
from toolgate.server.auth.issuing.rates import Rates, household
from toolgate.server.auth.issuing.said import DESCRIPTIONS, Refusal, Request, describe, pairs_of
from toolgate.server.auth.issuing.server import Fetched, Issuer, Server, refused
from toolgate.server.auth.issuing.unattended import IdJag, Own
from toolgate.server.auth.jose import InvalidToken, Key, header_of
from toolgate.server.auth.keys import Keys
from toolgate.server.auth.outside import Fetch
from toolgate.server.auth.outside import Issuer as Provider
from toolgate.server.auth.principals import subject_of
from toolgate.server.auth.tokens import OwnTokens, Unavailable
from toolgate.server.state import clients as client_rows
from toolgate.server.state import grants
from toolgate.server.state.oauth import digest
from toolgate.server.state.store import StateError, Store

if TYPE_CHECKING:
    from toolgate.server.auth.accounts import Person
    from toolgate.server.state.store import Connection

QUESTION_LIFETIME = 600.0  # seconds: a person signs in, finds the password, reads
SWEEP = 600.0  # seconds between two sweeps of what is over
REGISTRATIONS = 60  # a minute and address: a hosted platform has a few addresses for all of its users
ALL_REGISTRATIONS = 300  # a minute in all
PROVIDER_PAUSE = 30.0  # seconds between two looks for a provider's key that is not known
KINDS = {  # --registration → the kinds of clients taken
    "open": frozenset(("configured", "document", "dynamic")),
    "metadata": frozenset(("configured", "document")),
    "closed": frozenset(("configured",)),
}
EXPIRED = Mistake("invalid_request", "This question has been answered already, or has expired: start again.", 410)
BUSY = Mistake("temporarily_unavailable", DESCRIPTIONS["temporarily_unavailable"], 503)

T = TypeVar("T")


class Authorization:
    """One a server. All of its state is in `store`, but for what was fetched lately and the rates.

    `public_url` is the issuer. `tokens` mints access tokens by `keys`. `served()` gives the scopes there are, in the
    order they are shown. `configured`: the clients of `configured.clients(file)`. `registration`: "open" (dynamic,
    documents and configured), "metadata" (documents and configured), "closed" (configured). `client_hosts`: whose
    documents are taken; none: everybody's. `providers`: issuers whose ID-JAG are taken. `fetch`: `Web.fetch`.
    """

    def __init__(
        self,
        public_url: str,
        store: Store,
        keys: Keys,
        tokens: OwnTokens,
        served: Callable[[], Sequence[str]],
        fetch: Fetch,
        *,
        configured: Mapping[str, Client] | None = None,
        registration: str = "open",
        client_hosts: Sequence[str] = (),
        providers: Sequence[str] = (),
        now: Callable[[], float] = time.time,
    ) -> None:
        self._issuer = Issuer(public_url, tokens, configured or {}, KINDS[registration])
        self.granted = Grants(store, self._issuer.configured, tokens.deny, now)
        self._store = store
        self._keys = keys
        self._served = served
        self._now = now
        self._documents = Documents(store, fetch, served, client_hosts, now)
        self._providers = {issuer: Provider(issuer, fetch, now) for issuer in providers}
        self._rates = Rates(REGISTRATIONS, ALL_REGISTRATIONS, now)
        self._swept = float("-inf")

    # A person is asked

    async def ask(self, query: str) -> Question | Redirect | Mistake:
        """Look at an authorization request, the raw query of GET /authorize. A Question waits for ten minutes."""
        try:
            request = Request("GET", pairs_of(query), {})
            if "document" in self._issuer.kinds:
                await self._documents.refresh(request.payload.client_id or "")
        except ValueError:
            return Mistake("invalid_request", "The authorization request is too long, or is not UTF-8.")
        except Rejected as rejected:
            return Mistake(rejected.error, rejected.description)
        except StateError:
            return BUSY

        def act(server: Server) -> Question | Redirect | Mistake:
            grant = consent(server, request)
            if not isinstance(grant, Code):
                return grant
            id, until = secrets.token_urlsafe(32), server.now + QUESTION_LIFETIME
            grants.put_question(server.connection, digest(id), query, until)
            return question_of(grant, id, until)

        return await self._asked(act)

    async def question(self, id: str) -> Question | None:
        """The question, as long as it waits for its answer."""

        def act(server: Server) -> Question | None:
            row = grants.question(server.connection, digest(id), server.now)
            if row is None:
                return None
            grant = consent(server, Request("GET", pairs_of(row.query), {}))
            return question_of(grant, id, row.expires_at) if isinstance(grant, Code) else None

        return await self._act(act)

    async def answer(self, id: str, subject: "Person | None", scopes: frozenset[str]) -> Redirect | Mistake:
        """What became of it: approved by a person for `scopes` of those asked, the rest unticked; with no person, or
        none of the scopes, denied. A question has one answer: the second is a Mistake."""

        def act(server: Server) -> Redirect | Mistake:
            row = grants.take_question(server.connection, digest(id), server.now)
            if row is None:
                return EXPIRED
            request = Request("GET", pairs_of(row.query), {})
            grant = consent(server, request)
            if not isinstance(grant, Code):
                return grant
            shown = frozenset(question_of(grant, id, row.expires_at).scopes)
            approves = subject is not None and bool(scopes & shown)
            grant.approved = tuple(scope for scope in request.scope.split() if scope in scopes or scope not in shown)
            answered = server.create_authorization_response(request, subject if approves else None, grant=grant)
            assert isinstance(answered, Redirect | Mistake)
            return answered

        return await self._asked(act)

    async def remembered(self, id: str, subject: "Person") -> frozenset[str] | None:
        """The scopes of the question, if this person approved them all before, for the same client, redirect URI and
        resource. Never for a client that any program on the person's machine could be (AZ-07)."""

        def act(server: Server) -> frozenset[str] | None:
            row = grants.question(server.connection, digest(id), server.now)
            if row is None:
                return None
            grant = consent(server, Request("GET", pairs_of(row.query), {}))
            if not isinstance(grant, Code):
                return None
            question = question_of(grant, id, row.expires_at)
            held = grants.consent(
                server.connection,
                subject=subject_of(subject.issuer, subject.subject),
                client=question.client.id,
                redirect_uri=question.redirect_uri,
                resource=question.resource,
            )
            asked = frozenset(question.scopes)
            known = held is not None and asked <= frozenset(held.split())
            return asked if known and not question.client.loopback_only else None

        return await self._act(act)

    # A client asks

    async def token(self, form: Form, headers: Mapping[str, str]) -> Answer:
        """POST /token."""

        def act(server: Server, request: Request) -> Answer:
            if "grant_type" not in request.form:
                raise Refusal("invalid_request", "The grant_type is missing.")
            answer: Answer = server.create_token_response(request)
            return answer

        return await self._told(form, headers, act)

    async def revoke(self, form: Form, headers: Mapping[str, str]) -> Answer:
        """POST /revoke. 200 for a token nobody knows, too."""
        return await self._told(
            form, headers, lambda server, request: server.create_endpoint_response("revocation", request)
        )

    async def introspect(self, form: Form, headers: Mapping[str, str]) -> Answer:
        """POST /introspect, for clients that can prove who they are."""
        return await self._told(
            form, headers, lambda server, request: server.create_endpoint_response("introspection", request)
        )

    async def register(self, body: Any, address: str) -> Answer:
        """POST /register; `address` is the caller's."""
        if "dynamic" not in self._issuer.kinds:
            return refused("access_denied", "This server does not register clients.", 403)
        if not self._rates.take(household(address)):
            return registering.TOO_MANY
        try:
            return await self._act(lambda server: registering.register(server, body))
        except Rejected as rejected:
            return refused(rejected.error, rejected.description)
        except StateError:
            return refused("temporarily_unavailable", DESCRIPTIONS["temporarily_unavailable"], 503)

    # Anybody asks

    def metadata(self) -> dict[str, Any]:
        """The document of RFC 8414, and of OpenID Connect Discovery."""
        listed = self._issuer.configured.values()
        speaks = any(OWN in client.grants for client in listed)
        is_closed = not self._issuer.kinds & {"dynamic", "document"}  # then nobody comes but those listed
        return metadata.document(
            self._issuer.public_url,
            self._served(),
            [CODE, REFRESH, *([OWN] if speaks else []), *([ID_JAG] if self._providers else [])],
            [method for method in METHODS if not is_closed or any(client.authenticates(method) for client in listed)],
            registers="dynamic" in self._issuer.kinds,
            takes_documents="document" in self._issuer.kinds,
        )

    async def jwks(self) -> dict[str, Any]:
        return await self._keys.jwks()

    # A person looks at what was granted

    async def grants(self, subject: "Person") -> list[Granted]:
        """What a person has granted and still holds, the newest first."""
        return await self.granted.of(subject)

    async def withdraw(self, subject: "Person", id: str) -> bool:
        """Take back one of a person's grants: its tokens die, and the client is asked about anew. False: not theirs."""
        return await self.granted.withdraw(subject, id)

    async def close(self) -> None:
        for provider in self._providers.values():
            await provider.close()

    # How a request is done

    async def _told(self, form: Form, headers: Mapping[str, str], act: Callable[[Server, Request], Answer]) -> Answer:
        try:
            request = Request("POST", form, headers)
            request.check()
            fetched = await self._fetched(request)
            return await self._act(lambda server: act(server, request), fetched)
        except OAuth2Error as error:
            return refused(str(error.error), describe(error))
        except Rejected as rejected:
            return refused(rejected.error, rejected.description)
        except (StateError, Unavailable):
            return refused("temporarily_unavailable", DESCRIPTIONS["temporarily_unavailable"], 503)

    async def _asked(self, act: Callable[[Server], T]) -> T | Mistake:
        try:
            return await self._act(act)
        except StateError:
            return BUSY

    async def _act(self, act: Callable[[Server], T], fetched: Fetched | None = None) -> T:
        """Run `act` in one transaction, with what was fetched for it. What it denied is forgotten when it is done."""
        now, served = self._now(), self._served()
        due = now - self._swept >= SWEEP

        def transaction(connection: "Connection") -> tuple[T, list[str]]:
            if due:
                grants.sweep(connection, now)
                client_rows.sweep(connection, now)
            server = Server(self._issuer, connection, served, now, fetched or Fetched())
            for grant in (Refresh, Own, IdJag):
                server.register_grant(grant)
            server.register_grant(Code, [S256()])
            server.register_endpoint(Revocation)
            server.register_endpoint(Introspection)
            return act(server), server.denied

        outcome, denied = await self._store.transact(transaction)
        if due:
            self._swept = now
        for jti in denied:
            self._issuer.tokens.deny(jti)
        return outcome

    async def _fetched(self, request: Request) -> Fetched:
        """All that must be had before the transaction begins. Raises a Refusal, Rejected, Unavailable, StateError."""
        shown = presented(request)
        if "document" in self._issuer.kinds and shown.client not in self._issuer.configured:
            await self._documents.refresh(shown.client, old=True)
        keys: Sequence[Key] = ()
        if shown.method == "private_key_jwt":
            client = await self._store.transact(
                lambda connection: find(connection, self._issuer.configured, shown.client)
            )
            keys = await self._documents.keys_of(client, shown.secret) if client is not None else ()
        form = request.form
        return Fetched(
            signing=await self._keys.active() if "grant_type" in form else None,
            client_keys=keys,
            provider_keys=await self._provider_keys(form["assertion"]) if "assertion" in form else {},
            claims=await self._claims(form["token"]) if "token" in form else None,
        )

    async def _provider_keys(self, assertion: str) -> dict[str, Sequence[Key]]:
        """Those of the provider that the assertion says it is from."""
        issuer = claims_of(assertion).get("iss")
        provider = self._providers.get(issuer) if isinstance(issuer, str) else None
        if provider is None or not isinstance(issuer, str):
            return {}
        await provider.ready()
        kid = _kid(assertion)
        if kid is not None and all(key.kid != kid for key in provider.keys):
            await provider.renew(PROVIDER_PAUSE)
        return {issuer: tuple(provider.keys)}

    async def _claims(self, token: str) -> dict[str, Any] | None:
        """What an access token says; None when it is none, or not a good one."""
        if token.count(".") != 2:
            return None
        try:
            return await self._issuer.tokens.claims(token)
        except InvalidToken:
            return None


def _kid(token: str) -> str | None:
    try:
        return header_of(token).get("kid")
    except InvalidToken:
        return None

"""Sign people in at an OpenID Connect provider or at GitHub.

Source: OpenID Connect Core 1.0 and Discovery 1.0, RFC 7636, RFC 9207, RFC 9700.
"""

import base64
import hmac
import logging
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Protocol
from urllib.parse import quote, urlencode, urlsplit

from msgspec.structs import replace

from toolgate.server.auth.login.accounts import Person, SignInError
from toolgate.server.auth.login.allowlist import UserAllowlist
from toolgate.server.auth.login.provider_tokens import ClientRegistration, ProviderTokens, TokenKeeper
from toolgate.server.auth.login.sessions import derive_state, derive_value, pkce_challenge
from toolgate.server.auth.tokens import jose
from toolgate.server.auth.tokens.external_issuer import DocumentError, discover, fetch_json, find_endpoint

TIMEOUT = 10.0  # seconds for each request to a provider, while a person waits
MAX_DOCUMENT = 256 * 1024  # bytes; a provider's keys and metadata take a few kilobytes
METADATA_LIFETIME = 3600.0  # seconds a provider's metadata and keys are cached
KEY_RETRY = 60.0  # seconds between two searches for an unknown key
ALGORITHMS = ("RS256", "ES256", "EdDSA", "Ed25519")
NAMES = {"accounts.google.com": "Google", "login.microsoftonline.com": "Microsoft"}  # their names for people
# Google verifies the address of a personal account only once, and the address may change hands later. Google knows the
# present owner only in its own domains and in organisations, which have the claim `hd`
# (developers.google.com/identity/openid-connect).
HOSTED: Mapping[str, str] = {"https://accounts.google.com": "hd"}
OWN_DOMAINS = ("@gmail.com", "@googlemail.com")
MAX_EMAIL = 254  # characters (RFC 5321 section 4.5.3.1.3)
SCOPE, OFFLINE = "openid email profile", "offline_access"
SELECT = {"prompt": "select_account"}  # OpenID Connect Core section 3.1.2.1; GitHub knows it too
GITHUB_API = "https://api.github.com"
NOT_ALLOWED = "you signed in there, but that account may not use this server: ask its operator for access"

Fetch = Callable[..., Awaitable[Any]]  # as toolgate.tools.api.outbound.fetch.Web.fetch: guarded, with bounded answers
Form = Mapping[str, str] | None

log = logging.getLogger("toolgate.auth")


class IdentityProvider(Protocol):
    """A provider, made with `(issuer, client, secret, allowlist, fetch)`. `key` is its name here, `title` its name for
    people, `issuer` that of its people. `authorize_url` and `complete_sign_in` raise SignInError with text to show."""

    key: str
    title: str
    issuer: str

    async def authorize_url(self, back: str, ticket: str, select_account: bool = False) -> str:
        """Return the URL to send the browser to, which comes back to `back`; `select_account` asks which account."""
        ...

    async def complete_sign_in(self, answer: Mapping[str, str], back: str, ticket: str) -> Person:
        """Return the person who came back with this query."""
        ...

    def permits(self, person: Person) -> bool:
        """Return whether the person, as of the last sign-in, may come."""
        ...


class OpenIdProvider:
    """An OpenID Connect provider, known by its issuer URL."""

    key = "oidc"

    def __init__(
        self,
        issuer: str,
        client: str,
        secret: str,
        allowlist: UserAllowlist,
        fetch: Fetch,
        now: Callable[[], float] = time.time,
        hosted: str = "",
    ) -> None:
        """Store the settings. `hosted`: the claim that marks addresses the provider still controls; "": all are."""
        self.issuer = issuer
        self._hosted = hosted or HOSTED.get(issuer, "")
        host = urlsplit(issuer).hostname or issuer
        self.title = NAMES.get(host, host)
        self._client = client
        self._secret = secret
        self._allowlist = allowlist
        self._web = _ProviderClient(fetch, self.title)
        self._now = now
        self.keeper: TokenKeeper | None = None  # of the tokens of sign-ins, if a feature has one
        self._metadata: tuple[float, Mapping[str, Any]] | None = None
        self._keys: tuple[float, list[jose.JoseKey]] | None = None

    async def authorize_url(self, back: str, ticket: str, select_account: bool = False) -> str:
        metadata = await self._discover()
        parameters = {
            "response_type": "code",
            "client_id": self._client,
            "redirect_uri": back,
            "scope": f"{SCOPE} {OFFLINE}" if self._wants_tokens and _offers(metadata, OFFLINE) else SCOPE,
            "state": derive_state(ticket),
            "nonce": derive_value(ticket, "nonce"),
            **pkce_challenge(ticket),
            **(SELECT if select_account else {}),
        }
        return _with_query(_endpoint(metadata, "authorization_endpoint", self.title), parameters)

    async def complete_sign_in(self, answer: Mapping[str, str], back: str, ticket: str) -> Person:
        metadata = await self._discover()
        iss = answer.get("iss")
        if iss != self.issuer and (iss or metadata.get("authorization_response_iss_parameter_supported") is True):
            raise SignInError(f"the answer did not come from {self.title}: try again")
        tokens = await self._tokens(metadata, _code(answer, self.title), back, ticket)
        claims = await self._claims(metadata, tokens.get("id_token"))
        if not hmac.compare_digest(str(claims.get("nonce")).encode(), derive_value(ticket, "nonce").encode()):
            raise SignInError(f"{self.title} answered another sign-in: try again")
        subject = claims.get("sub")
        own = self._client
        if not isinstance(subject, str) or not 0 < len(subject) <= 255 or claims.get("azp", own) != own:
            raise SignInError(f"{self.title} did not say who you are")
        if self._allowlist.needs_email and "email" not in claims:
            claims = {**await self._userinfo(metadata, tokens, subject), "sub": subject}
        email = self._email(claims)
        claims = {**claims, "email": email}
        name = _name(claims, "email", "preferred_username", "name") or subject
        person = Person(self.issuer, subject, name, email)
        if not self.permits(person):
            raise SignInError(NOT_ALLOWED)
        if self.keeper is not None and self._wants_tokens:
            await self.keeper.keep(person, _read_tokens(tokens, claims["exp"]))
        return person

    async def find_client(self) -> ClientRegistration:
        """Return this server's registration at the provider. Raises SignInError."""
        metadata = await self._discover()
        endpoint = _endpoint(metadata, "token_endpoint", self.title)
        return ClientRegistration(
            endpoint, self._client, self._secret, _list_methods(metadata), _find_revocation(metadata)
        )

    async def verify_id_token(self, token: object) -> dict[str, Any]:
        """Return the claims of an ID token for this server. Raises SignInError."""
        return await self._claims(await self._discover(), token)

    @property
    def _wants_tokens(self) -> bool:
        return self.keeper is not None and self.keeper.wants_tokens

    def _email(self, claims: Mapping[str, Any]) -> str | None:
        """Return the address if the provider vouches for it."""
        email = claims.get("email")
        if claims.get("email_verified") not in (True, "true") or not isinstance(email, str) or len(email) > MAX_EMAIL:
            return None
        if not self._hosted or claims.get(self._hosted) or email.lower().endswith(OWN_DOMAINS):
            return email
        if self._allowlist.lists_email(email):
            return email
        log.info("%s: a personal account under an organisation's address (no %s)", self.issuer, self._hosted)
        return None

    def permits(self, person: Person) -> bool:
        return self._allowlist.permits(self.key, person.subject, person.email)

    async def _discover(self) -> Mapping[str, Any]:
        """Return the provider's metadata, fetched at most every `METADATA_LIFETIME`."""
        if self._metadata is None or self._now() - self._metadata[0] > METADATA_LIFETIME:
            try:
                url = self.issuer.rstrip("/") + "/.well-known/openid-configuration"
                self._metadata = (self._now(), await discover(self._web.fetch_document, self.issuer, [url]))
            except DocumentError as error:
                raise self._web.refuse(error) from None
        return self._metadata[1]

    async def _tokens(self, metadata: Mapping[str, Any], code: str, back: str, ticket: str) -> dict[str, Any]:
        form = {
            "grant_type": "authorization_code",
            "code": code,
            "redirect_uri": back,
            "client_id": self._client,
            "code_verifier": derive_value(ticket, "verifier"),
        }
        headers: dict[str, str] = {}
        if self._secret and "client_secret_basic" in _list_methods(metadata):
            del form["client_id"]
            pair = f"{quote(self._client, safe='')}:{quote(self._secret, safe='')}"  # RFC 6749 section 2.3.1
            headers["authorization"] = "Basic " + base64.b64encode(pair.encode()).decode()
        elif self._secret:
            form["client_secret"] = self._secret
        return await self._web.json(_endpoint(metadata, "token_endpoint", self.title), form, headers)

    async def _claims(self, metadata: Mapping[str, Any], token: object) -> dict[str, Any]:
        if not isinstance(token, str):
            raise SignInError(f"{self.title} did not say who you are")
        try:
            try:
                return self._verify(token, await self._known_keys(metadata, METADATA_LIFETIME))
            except jose.UnknownKeyError:
                return self._verify(token, await self._known_keys(metadata, KEY_RETRY))
        except jose.InvalidTokenError as error:
            log.warning("%s sent an id_token that does not hold: %s", self.issuer, error)
            raise SignInError(f"{self.title} did not say who you are") from None

    def _verify(self, token: str, keys: list[jose.JoseKey]) -> dict[str, Any]:
        return jose.verify(
            token, keys, typ=("jwt", ""), algorithms=ALGORITHMS, issuer=self.issuer, audience=(self._client,)
        )

    async def _known_keys(self, metadata: Mapping[str, Any], age: float) -> list[jose.JoseKey]:
        if self._keys is None or self._now() - self._keys[0] >= age:
            document = await self._web.json(_endpoint(metadata, "jwks_uri", self.title))
            try:
                self._keys = (self._now(), jose.parse_jwks(document))
            except ValueError:
                raise SignInError(f"{self.title} can't be used: it publishes no keys") from None
        return self._keys[1]

    async def _userinfo(self, metadata: Mapping[str, Any], tokens: dict[str, Any], subject: str) -> dict[str, Any]:
        """Return claims that the id_token left out. They must be about the same subject (Core section 5.3.2)."""
        if "userinfo_endpoint" not in metadata or not isinstance(tokens.get("access_token"), str):
            return {}
        bearer = {"authorization": f"Bearer {tokens['access_token']}"}
        claims = await self._web.json(_endpoint(metadata, "userinfo_endpoint", self.title), headers=bearer)
        return claims if claims.get("sub") == subject else {}


class GitHubProvider:
    """GitHub, which has OAuth 2 and an API, but no id_token. A person's number never changes and is never reused."""

    key = "github"
    title = "GitHub"

    def __init__(
        self, issuer: str, client: str, secret: str, allowlist: UserAllowlist, fetch: Fetch, api: str = GITHUB_API
    ) -> None:
        self._client = client
        self._secret = secret
        self._allowlist = allowlist
        self._web = _ProviderClient(fetch, self.title)
        self.issuer = issuer
        self._api = api

    async def authorize_url(self, back: str, ticket: str, select_account: bool = False) -> str:
        parameters = {
            "client_id": self._client,
            "redirect_uri": back,
            "scope": "read:user user:email" if self._allowlist.needs_email else "read:user",
            "state": derive_state(ticket),
            "allow_signup": "false",
            **pkce_challenge(ticket),
            **(SELECT if select_account else {}),
        }
        return _with_query(f"{self.issuer}/login/oauth/authorize", parameters)

    async def complete_sign_in(self, answer: Mapping[str, str], back: str, ticket: str) -> Person:
        iss = answer.get("iss")
        if iss is not None and not (iss.isascii() and urlsplit(iss).netloc == urlsplit(self.issuer).netloc):
            raise SignInError("the answer did not come from GitHub: try again")
        form = {
            "client_id": self._client,
            "client_secret": self._secret,
            "code": _code(answer, self.title),
            "redirect_uri": back,
            "code_verifier": derive_value(ticket, "verifier"),
        }
        tokens = await self._web.json(f"{self.issuer}/login/oauth/access_token", form)
        if not isinstance(tokens.get("access_token"), str):
            raise SignInError("GitHub did not say who you are")
        bearer = {"authorization": f"Bearer {tokens['access_token']}"}
        user = await self._web.json(f"{self._api}/user", headers=bearer)
        number, login = user.get("id"), user.get("login")
        if type(number) is not int or not isinstance(login, str):
            raise SignInError("GitHub did not say who you are")
        person = Person(self.issuer, str(number), login)
        if self.permits(person):
            return person
        for email in await self._emails(bearer) if self._allowlist.needs_email else ():
            if self._allowlist.permits_email(email):
                return replace(person, email=email)
        raise SignInError(NOT_ALLOWED)

    def permits(self, person: Person) -> bool:
        return self._allowlist.permits(self.key, person.subject, person.email)

    async def _emails(self, bearer: Mapping[str, str]) -> list[str]:
        """Return the addresses that GitHub has verified."""
        listed = await self._web.document(f"{self._api}/user/emails", headers=bearer)
        rows = [row for row in listed if isinstance(row, dict)] if isinstance(listed, list) else []
        return [str(row.get("email")) for row in rows if row.get("verified") is True]


class _ProviderClient:
    """Send requests to a provider. Failures are logged without the request; the person reads one sentence."""

    def __init__(self, fetch: Fetch, title: str) -> None:
        self._fetch = fetch
        self._title = title

    async def json(self, url: str, form: Form = None, headers: Form = None) -> dict[str, Any]:
        document = await self.document(url, form, headers)
        if not isinstance(document, dict):
            raise self.refuse(f"{url.partition('?')[0]} is not a JSON object")
        return document

    async def document(self, url: str, form: Form = None, headers: Form = None) -> Any:
        try:
            return await self.fetch_document(url, form, headers)
        except DocumentError as error:
            raise self.refuse(error) from None

    async def fetch_document(self, url: str, form: Form = None, headers: Form = None) -> Any:
        """Return the JSON answer to a GET, or to a POST of `form`. Raises DocumentError."""
        sent = dict(headers or {})
        request: dict[str, Any] = {}
        if form is not None:
            sent["content-type"] = "application/x-www-form-urlencoded"
            request = {"method": "POST", "body": urlencode(form).encode()}
        return await fetch_json(self._fetch, url, limit=MAX_DOCUMENT, timeout=TIMEOUT, headers=sent, **request)

    def refuse(self, why: object) -> SignInError:
        log.warning("signing in with %s failed: %s", self._title, why)
        return SignInError(f"signing in with {self._title} failed; the server's log has the details")


def _code(answer: Mapping[str, str], title: str) -> str:
    """Return the code of the query. Raises SignInError for an error, without its text: anyone could have written it."""
    if answer.get("error") == "access_denied":
        raise SignInError(f"you did not finish signing in at {title}")
    if "error" in answer or not answer.get("code"):
        raise SignInError(f"signing in with {title} failed: it sent an error")
    return answer["code"]


def _endpoint(metadata: Mapping[str, Any], name: str, title: str) -> str:
    try:
        return find_endpoint(metadata, name)
    except DocumentError:
        raise SignInError(f"{title} can't be used: its metadata has no usable {name}") from None


def _find_revocation(metadata: Mapping[str, Any]) -> str:
    """Return the revocation endpoint, or "" without one: people can sign in all the same."""
    try:
        return find_endpoint(metadata, "revocation_endpoint")
    except DocumentError:
        return ""


def _read_tokens(tokens: Mapping[str, Any], expires_at: Any) -> ProviderTokens:
    """Return the tokens of a sign-in whose ID token was verified."""
    again = tokens.get("refresh_token")
    return ProviderTokens(tokens["id_token"], again if isinstance(again, str) else "", expires_at)


def _list_methods(metadata: Mapping[str, Any]) -> Sequence[str]:
    """Return the ways in which a client may send its secret (Discovery section 3)."""
    methods = metadata.get("token_endpoint_auth_methods_supported", ["client_secret_basic"])
    return [method for method in methods if isinstance(method, str)] if isinstance(methods, list) else []


def _offers(metadata: Mapping[str, Any], scope: str) -> bool:
    scopes = metadata.get("scopes_supported")
    return isinstance(scopes, list) and scope in scopes


def _with_query(url: str, parameters: Mapping[str, str]) -> str:
    return url + ("&" if "?" in url else "?") + urlencode(parameters)


def _name(claims: Mapping[str, Any], *names: str) -> str:
    """Return the first of these claims that can be shown as a name."""
    for name in names:
        value = claims.get(name)
        if isinstance(value, str) and value.strip() and value.isprintable():
            return value.strip()[:100]
    return ""

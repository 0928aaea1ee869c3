"""The way of a hosted client to a server, link by link: name, TLS, challenge, metadata, registration, sign-in page,
tokens, the first call, event streams. Knows what must be there, as the specification and the platforms want it. What a
server says is not believed: it decides neither what is removed, nor where a token goes, nor what of a network inside
is asked. The client that is registered on the way is removed where the server offers that.

Source: MCP 2026-07-28 basic/authorization; RFC 9728, 8414, 7591, 7592, 6749; the platforms' own pages.
"""

import asyncio
import base64
import contextlib
import hashlib
import secrets
import time
from typing import Any
from urllib.parse import parse_qsl, urlencode, urljoin, urlsplit, urlunsplit

import msgspec

from toolgate.server.chain_wire import (
    ORIGIN,
    PROXY,
    PUBLIC_URL,
    STATUSES,
    TIMEOUT,
    Got,
    Wire,
    checked_issuer,
    is_web,
    listed,
    origin_of,
    parameters,
)
from toolgate.server.checks import Broken, Row, Skipped
from toolgate.server.client import hello
from toolgate.server.config import Config
from toolgate.server.errors import UsageError
from toolgate.server.http_client import authorized, checked
from toolgate.server.options import is_loopback
from toolgate.server.revisions import NEWEST_WITH_SESSION

INITIALIZE = msgspec.json.encode(
    {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": hello(NEWEST_WITH_SESSION.name, asks=False)}
)
REDIRECT = "http://127.0.0.1:33418/"  # nobody listens: a code is never asked for
SOON = 14 * 86_400.0  # seconds before a certificate's end that it is told
HOPS = 5  # redirects from /authorize to the page a person sees
CERTIFICATES = {  # what of one does not hold, as OpenSSL numbers it (X509_V_ERR_…) → what to do
    10: "renew the certificate, and let the proxy do that by itself from now on",
    62: "have the proxy serve a certificate for {host}: this one is for another name",
    64: "paste the URL with the name that the certificate is for, or get one for {host}",
}
BUFFERS = "have the proxy pass event streams on as they come: proxy_buffering off, gzip off"
METHODS = "token_endpoint_auth_methods_supported"
ONCE_SIGNED_IN = "needs an access token in TOOLGATE_TOKEN"


class Chain:
    """The way to `url`. What one link finds the later ones use."""

    def __init__(self, url: str, config: Config) -> None:
        parts = checked(url)
        self._url = url if parts.path.strip("/") else urlunsplit((parts.scheme, parts.netloc, "/mcp", "", ""))
        self._parts = checked(self._url)
        self._config = config
        self._wire = Wire(self._url)
        self._challenge: dict[str, str] = {}
        self._resource: dict[str, Any] = {}
        self._issuer = ""
        self._server: dict[str, Any] = {}
        self._shared: list[tuple[str, Got]] = []  # documents that pages may read
        self._client = ""
        self._registered: dict[str, Any] = {}
        self._session: dict[str, str] = {}  # the headers of the one that the first call began

    def rows(self) -> list[Row]:
        """The links, in order, each with those it hangs on."""
        return [
            ("name", self._name, ()),
            ("connection", self._connection, ("name",)),
            ("TLS", self._tls, ("connection",)),
            ("no redirect", self._no_redirect, ("connection",)),
            ("challenge", self._challenged, ("no redirect",)),
            ("made-up token", self._made_up_token, ("challenge",)),
            ("resource metadata", self._resource_metadata, ("challenge",)),
            ("resource", self._same_resource, ("resource metadata",)),
            ("server metadata", self._server_metadata, ("resource metadata",)),
            ("issuer", self._same_issuer, ("server metadata",)),
            ("abilities", self._abilities, ("server metadata",)),
            ("CORS", self._cors, ("server metadata",)),
            ("registration", self._registration, ("server metadata",)),
            ("sign-in page", self._sign_in_page, ("registration",)),
            ("token endpoint", self._token_endpoint, ("server metadata",)),
            ("clean-up", self._clean_up, ()),
            ("first call", self._first_call, ("resource",)),
            ("event streams", self._event_streams, ()),
        ]

    async def _name(self) -> str:
        from toolgate.tools.guard import Allowed, check_address  # start-up

        host = self._parts.hostname or ""
        try:
            found = await asyncio.get_running_loop().getaddrinfo(host, None)
        except (OSError, UnicodeError):
            raise Broken(f"{host} has no address", "set its A record; names of a private network won't do") from None
        addresses = sorted({str(row[4][0]) for row in found})
        told = f"{host} is {', '.join(addresses)}"
        if is_loopback(host):
            return f"{told}: this machine, which hosted clients don't reach"
        inside = [f"{each} is {kind}" for each in addresses if (kind := check_address(each, Allowed())) is not None]
        if inside:
            raise Broken("; ".join(inside), "hosted clients reach public addresses alone: all of its records must be")
        if all(":" in each for each in addresses):
            raise Broken(told, "add an A record: some platforms have no IPv6")
        return told

    async def _connection(self) -> str:
        host, port = self._parts.hostname or "", self._port
        try:
            async with asyncio.timeout(TIMEOUT):
                _, sink = await asyncio.open_connection(host, port)
        except OSError as error:
            raise Broken(
                f"{host}, port {port}: {error.strerror or str(error) or 'no answer in time'}",
                "start the server, and have this address and port lead to it",
            ) from None
        sink.close()
        return f"port {port} is open"

    @property
    def _port(self) -> int:
        return self._parts.port or (443 if self._parts.scheme == "https" else 80)

    async def _tls(self) -> str:
        import ssl  # start-up

        host = self._parts.hostname or ""
        if self._parts.scheme == "http":
            if is_loopback(host):
                raise Skipped("http on loopback has none")
            raise Broken("the URL is http", "serve https: a proxy in front with a certificate will do")
        try:
            async with asyncio.timeout(TIMEOUT):
                _, sink = await asyncio.open_connection(host, self._port, ssl=True)
        except ssl.SSLCertVerificationError as error:
            remedy = CERTIFICATES.get(error.verify_code, "serve the whole chain of a certificate that browsers trust")
            raise Broken(error.verify_message, remedy.format(host=host)) from None
        except (OSError, TimeoutError) as error:
            reason = str(error) or "no connection in time"
            raise Broken(reason, "have the proxy speak TLS there") from None
        certificate = sink.get_extra_info("peercert") or {}
        sink.close()
        left = ssl.cert_time_to_seconds(certificate["notAfter"]) - time.time() if "notAfter" in certificate else SOON
        return "verified" if left >= SOON else f"verified; it ends in {left / 86_400:.0f} days: renew it"

    async def _no_redirect(self) -> str:
        for url in (self._url, self._url.rstrip("/") + "/"):
            got = await self._wire.ask("POST", url, {}, INITIALIZE)
            if 300 <= got.status < 400:
                where = got.headers.get("location", "somewhere")
                raise Broken(f"{url} redirects to {where}", f"tokens get lost there; {PROXY}")
        return "neither with nor without a slash at the end"

    async def _challenged(self) -> str:
        got = await self._wire.ask("POST", self._url, {}, INITIALIZE)
        if got.status == 200 and got.is_mcp:
            raise Broken("it answers without a token", "anybody may call: serve with --auth oauth")
        if got.status == 200:
            raise Broken(
                "this is no MCP server: it answers 200 without JSON-RPC",
                "paste the URL with /mcp at its end, and have the proxy lead that path to Toolgate",
            )
        if got.status != 401:
            remedy = STATUSES.get(got.status, PROXY if got.status < 500 else "start the server, or mend the proxy")
            raise Broken(f"it answers {got.status} to a call without a token, not 401", remedy)
        header = got.headers.get("www-authenticate", "")
        scheme, _, rest = header.partition(" ")
        self._challenge = parameters(rest)
        if scheme.lower() != "bearer" or "resource_metadata" not in self._challenge:
            raise Broken("its 401 has no WWW-Authenticate: Bearer with resource_metadata", PROXY)
        return f"401, scope {self._challenge.get('scope', 'none')}"

    async def _made_up_token(self) -> str:
        """A token that is refused as one has arrived: where a proxy strips it, the server only asks for one again."""
        token = secrets.token_urlsafe(24)
        got = await self._wire.ask("POST", self._url, {"Authorization": f"Bearer {token}"}, INITIALIZE)
        if got.status == 200:
            raise Broken("it takes a token that was made up", "look at what answers there: it is no Toolgate")
        if got.status != 401:
            raise Broken(f"it answers {got.status} to one, not 401", STATUSES.get(got.status, PROXY))
        if parameters(got.headers.get("www-authenticate", "").partition(" ")[2]).get("error") != "invalid_token":
            raise Broken(
                "it is answered like none at all: Authorization does not arrive", "have the proxy pass Authorization on"
            )
        return "refused as invalid_token: Authorization arrives"

    async def _resource_metadata(self) -> str:
        named = self._challenge["resource_metadata"]
        if (urlsplit(named).scheme, urlsplit(named).netloc) != (self._parts.scheme, self._parts.netloc):
            raise Broken(f"the challenge names {named}, of another origin", PUBLIC_URL)
        inserted = f"/.well-known/oauth-protected-resource{self._parts.path.rstrip('/')}"
        for url in dict.fromkeys((named, urljoin(self._url, inserted))):
            got, self._resource = await self._wire.document(
                url, "route /.well-known/oauth-protected-resource to the server too"
            )
            self._shared.append((url, got))
        servers = self._resource.get("authorization_servers")
        if not isinstance(servers, list) or not servers or not isinstance(servers[0], str):
            raise Broken("it names no authorization server", "look at what answers there: it is no Toolgate")
        self._issuer = servers[0]
        return named

    async def _same_resource(self) -> str:
        told = self._resource.get("resource")
        if told != self._url:
            if told == self._url.rstrip("/"):
                raise Broken(
                    f"it calls itself {told}", "remove the slash at the end: clients compare letter for letter"
                )
            base = self._url.removesuffix("/mcp").removesuffix("/sse")
            raise Broken(
                f"it calls itself {told}, and {self._url} was asked for: clients compare letter for letter",
                f"paste {told} instead, or start the server with --public-url {base}",
            )
        return str(told)

    async def _server_metadata(self) -> str:
        parts = checked_issuer(self._issuer)
        origin, path = f"{parts.scheme}://{parts.netloc}", parts.path.rstrip("/")
        tried: Broken | None = None
        for known in ("oauth-authorization-server", "openid-configuration"):
            for url in dict.fromkeys((f"{origin}/.well-known/{known}{path}", f"{origin}{path}/.well-known/{known}")):
                try:
                    got, self._server = await self._wire.document(
                        url, f"route /.well-known/{known} of {origin} to the issuer"
                    )
                except Broken as broken:
                    tried = tried or broken
                else:
                    self._shared.append((url, got))
                    return url
        assert tried is not None
        raise tried

    async def _same_issuer(self) -> str:
        told = self._server.get("issuer")
        if told != self._issuer:
            raise Broken(f"the metadata of {self._issuer} is of {told}", f"{PUBLIC_URL}, or --auth to what it says")
        return str(told)

    async def _abilities(self) -> str:
        server = self._server
        lacking = [name for name in ("authorization_endpoint", "token_endpoint") if not is_web(server.get(name))]
        if lacking:
            raise Broken(f"{lacking[0]} is no https URL: {server.get(lacking[0])}", PUBLIC_URL)
        if "S256" not in listed(server, "code_challenge_methods_supported"):
            raise Broken("PKCE with S256 is not announced", "clients go no further: choose another issuer for --auth")
        if "code" not in listed(server, "response_types_supported"):
            raise Broken("the response type code is not announced", "choose another issuer for --auth")
        empty = [name for name, value in server.items() if value is None]
        if empty:
            raise Broken(f"{empty[0]} is null", "clients refuse that: it has to be left out")
        told = "code, S256" + (", iss" if server.get("authorization_response_iss_parameter_supported") else "")
        if server.get("client_id_metadata_document_supported") is not True or "none" in listed(server, METHODS):
            return told
        if server.get("registration_endpoint") is None:
            raise Broken(
                f'clients come by metadata document, and those without a secret do not: no "none" in {METHODS}',
                "claude.ai needs it: have the issuer take and announce it, or choose another for --auth",
            )
        return f'{told}; no "none" in {METHODS}: claude.ai comes by registration alone'

    async def _cors(self) -> str:
        for url, got in self._shared:
            if got.headers.get("access-control-allow-origin") not in ("*", ORIGIN["Origin"]):
                raise Broken(f"{url} may not be read by web pages", "let the proxy keep Access-Control-Allow-Origin")
        preflight = {**ORIGIN, "Access-Control-Request-Method": "POST"}
        got = await self._wire.ask("OPTIONS", str(self._server.get("token_endpoint")), preflight)
        if got.status >= 300 or got.headers.get("access-control-allow-origin") not in ("*", ORIGIN["Origin"]):
            raise Broken(
                "the token endpoint refuses web pages", "clients in a browser fail: let OPTIONS pass the proxy"
            )
        return "documents and token endpoint are open to pages"

    async def _registration(self) -> str:
        endpoint = self._server.get("registration_endpoint")
        by_document = self._server.get("client_id_metadata_document_supported") is True
        if endpoint is None:
            raise Skipped("by metadata document alone" if by_document else "by the operator alone: toolgate client add")
        asked = {
            "client_name": "toolgate doctor",
            "redirect_uris": [REDIRECT],
            "grant_types": ["authorization_code", "refresh_token"],
            "response_types": ["code"],
            "token_endpoint_auth_method": "none",
        }
        got = await self._wire.ask(
            "POST", str(endpoint), {"Content-Type": "application/json"}, msgspec.json.encode(asked)
        )
        told = got.json()
        if got.status != 201 or not isinstance(told.get("client_id"), str):
            raise Broken(f"{endpoint} answers {got.status} {told.get('error', '')}".rstrip(), self._remedy(PROXY))
        self._client, self._registered = told["client_id"], told
        empty = [name for name, value in told.items() if value is None]
        if empty:
            raise Broken(f"{empty[0]} in its answer is null", "clients refuse that: it has to be left out")
        return "dynamic" + (" and by metadata document" if by_document else "")

    async def _sign_in_page(self) -> str:
        endpoint = str(self._server["authorization_endpoint"])
        digest = hashlib.sha256(secrets.token_bytes(32)).digest()
        query = {
            "response_type": "code",
            "client_id": self._client,
            "redirect_uri": REDIRECT,
            "code_challenge": base64.urlsafe_b64encode(digest).decode().rstrip("="),
            "code_challenge_method": "S256",
            "resource": self._url,
            "state": secrets.token_urlsafe(16),
        }
        url = f"{endpoint}{'&' if '?' in endpoint else '?'}{urlencode(query)}"
        got = await self._wire.ask("GET", url, {"Accept": "text/html"})
        for _ in range(HOPS):
            if not 300 <= got.status < 400:
                break
            url = urljoin(url, got.headers.get("location", ""))
            if url.startswith(REDIRECT):
                said = dict(parse_qsl(urlsplit(url).query))
                error = f"{said.get('error', '')} {said.get('error_description', '')}".strip()
                raise Broken(f"it sends back: {error}", self._remedy("the server's log says more"))
            if not is_web(url):
                raise Broken(f"it sends to {url}", PUBLIC_URL)
            got = await self._wire.ask("GET", url, {"Accept": "text/html"})
        shown = url.partition("?")[0]
        if got.status != 200 or "text/html" not in got.headers.get("content-type", ""):
            raise Broken(f"{shown} answers {got.status}", self._remedy(PROXY))
        return shown

    def _remedy(self, here: str) -> str:
        """`here`, unless it is an outside issuer that answered."""
        if origin_of(self._issuer) == origin_of(self._url):
            return here
        return f"look at {self._issuer} and its log: it is not this server that refuses"

    async def _token_endpoint(self) -> str:
        """A client nobody knows is to hear invalid_client, so that it registers anew; a bad code invalid_grant."""
        endpoint = str(self._server.get("token_endpoint"))
        notes = ""
        tries: list[tuple[str, str, tuple[int, ...]]] = [
            ("nobody-" + secrets.token_hex(8), "invalid_client", (401, 400))
        ]
        tries += [(self._client, "invalid_grant", (400,))] if self._client else []
        for client, error, statuses in tries:
            form = {
                "grant_type": "authorization_code",
                "client_id": client,
                "code": secrets.token_urlsafe(32),
                "redirect_uri": REDIRECT,
                "code_verifier": secrets.token_urlsafe(32),
            }
            kind = {"Content-Type": "application/x-www-form-urlencoded"}
            got = await self._wire.ask("POST", endpoint, kind, urlencode(form).encode())
            if got.status not in statuses or got.json().get("error") != error:
                said = f"{got.status} {got.json().get('error', 'without an error of OAuth')}"
                raise Broken(f"{endpoint} answers {said} where {statuses[0]} {error} belongs", self._remedy(PROXY))
            if got.status != statuses[0]:
                notes = f"; it says {got.status} for {error}: some clients register anew on {statuses[0]} alone"
        return f"errors are as they should be{notes}"

    async def _clean_up(self) -> str:
        """Of the client registered above, by RFC 7592. The URI is the server's word: it goes no further than to where
        the client was registered."""
        if not self._client:
            raise Skipped("no client was registered")
        told = self._registered
        uri, key = told.get("registration_client_uri"), told.get("registration_access_token")
        home = origin_of(str(self._server.get("registration_endpoint")))
        if is_web(uri) and origin_of(str(uri)) == home and isinstance(key, str) and key.isascii() and key.isprintable():
            got = await self._wire.ask("DELETE", str(uri), {"Authorization": f"Bearer {key}"})
            if got.status == 204:
                return "the client is gone"
        raise Skipped(f"the client {self._client} stays until the server forgets it, a Toolgate after a week")

    async def _first_call(self) -> str:
        token = self._config.token
        if not token:
            raise Skipped(f"not checked: {ONCE_SIGNED_IN}")
        try:
            headers = authorized(token, self._url)
        except UsageError as error:
            raise Broken(str(error), "give the access token alone, and an https URL") from None
        got = await self._wire.ask("POST", self._url, headers, INITIALIZE)
        session = got.headers.get("mcp-session-id")
        if session is not None:
            self._session = {**headers, "Mcp-Session-Id": session, "MCP-Protocol-Version": NEWEST_WITH_SESSION.name}
        if got.status == 401:
            why = parameters(got.headers.get("www-authenticate", "").partition(" ")[2])
            told = why.get("error_description") or why.get("error") or "no token arrived there"
            raise Broken(f"401: {told}", "take a fresh token, or have the proxy pass Authorization on")
        if got.status != 200 or b'"protocolVersion"' not in got.body:
            raise Broken(f"initialize is answered {got.status}", STATUSES.get(got.status, PROXY))
        return "initialize is answered"

    async def _event_streams(self) -> str:
        """A stream that stays open, of the first call's session: a proxy that buffers holds its beginning back."""
        if not self._session:
            raise Skipped(
                "not checked: " + ("needs a session of the first call" if self._config.token else ONCE_SIGNED_IN)
            )
        try:
            got = await self._wire.ask("GET", self._url, {**self._session, "Accept": "text/event-stream"})
        except Broken as broken:
            raise Broken(str(broken), BUFFERS) from None
        finally:
            with contextlib.suppress(Broken):
                await self._wire.ask("DELETE", self._url, self._session)
        if got.status == 405:
            raise Skipped("the server has none")
        if got.status != 200:
            raise Broken(f"a stream is answered {got.status}", STATUSES.get(got.status, PROXY))
        if not got.body:
            raise Skipped("one opens at once; no event came that could be held back")
        return "they come as they are sent"

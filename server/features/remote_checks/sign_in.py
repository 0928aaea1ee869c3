"""Check what a client needs before it has a token: metadata, keys, registration, the sign-in page, token endpoint."""

import base64
import hashlib
import secrets
from urllib.parse import parse_qsl, urlencode, urljoin, urlsplit

import msgspec

from toolgate.server.cli.doctor.report import CheckError, CheckSkippedError
from toolgate.server.cli.mcp_client.foreign_urls import is_secure_url
from toolgate.server.cli.mcp_client.http import get_origin
from toolgate.server.features.remote_checks.connection import INTERCEPTED
from toolgate.server.features.remote_checks.target import (
    ORIGIN,
    PROXY,
    PUBLIC_URL,
    RemoteTarget,
    get_list,
)

METHODS = "token_endpoint_auth_methods_supported"
REDIRECT = "http://127.0.0.1:33418/"  # nothing listens there: no code is ever requested
MAX_REDIRECTS = 5  # redirects from /authorize to the page a person sees


async def resource_metadata(target: RemoteTarget) -> str:
    named = target.challenge["resource_metadata"]
    target.require_https("the metadata", named)
    if (urlsplit(named).scheme, urlsplit(named).netloc) != (target.parts.scheme, target.parts.netloc):
        raise CheckError(f"the challenge names {named}, of another origin", PUBLIC_URL)
    inserted = f"/.well-known/oauth-protected-resource{target.parts.path.rstrip('/')}"
    for url in dict.fromkeys((named, urljoin(target.url, inserted))):
        got, target.resource_metadata = await target.probe.fetch_json(
            url, "route /.well-known/oauth-protected-resource to the server too"
        )
        target.cors_documents.append((url, got))
    servers = target.resource_metadata.get("authorization_servers")
    if not isinstance(servers, list) or not servers or not isinstance(servers[0], str):
        raise CheckError("it names no authorization server", "look at what answers there: it is no Toolgate")
    target.issuer = servers[0]
    target.require_https("the issuer", target.issuer)
    return named


async def same_resource(target: RemoteTarget) -> str:
    told = target.resource_metadata.get("resource")
    target.require_https("the resource", told)
    if told != target.url:
        if told == target.url.rstrip("/"):
            raise CheckError(f"it calls itself {told}", "remove the slash at the end: clients compare URLs exactly")
        raise CheckError(
            f"it calls itself {told}, and {target.url} was asked for: clients compare letter for letter",
            f"paste {told} instead, or start the server with --public-url {target.public_url}",
        )
    return str(told)


async def server_metadata(target: RemoteTarget) -> str:
    if not is_secure_url(target.issuer):
        raise CheckError(f"the issuer {target.issuer} is not an https URL", PUBLIC_URL)
    parts = urlsplit(target.issuer)
    origin, path = f"{parts.scheme}://{parts.netloc}", parts.path.rstrip("/")
    tried: CheckError | None = None
    for known in ("oauth-authorization-server", "openid-configuration"):
        for url in dict.fromkeys((f"{origin}/.well-known/{known}{path}", f"{origin}{path}/.well-known/{known}")):
            try:
                got, target.server_metadata = await target.probe.fetch_json(
                    url, f"route /.well-known/{known} of {origin} to the issuer"
                )
            except CheckError as broken:
                tried = tried or broken
            else:
                target.cors_documents.append((url, got))
                return url
    assert tried is not None
    raise tried


async def same_issuer(target: RemoteTarget) -> str:
    told = target.server_metadata.get("issuer")
    if told != target.issuer:
        raise CheckError(f"the metadata of {target.issuer} is of {told}", f"{PUBLIC_URL}, or --auth to what it says")
    return str(told)


async def abilities(target: RemoteTarget) -> str:
    server = target.server_metadata
    for endpoint in ("authorization_endpoint", "token_endpoint", "registration_endpoint"):
        target.require_https(endpoint, server.get(endpoint))
    lacking = [name for name in ("authorization_endpoint", "token_endpoint") if not is_secure_url(server.get(name))]
    if lacking:
        raise CheckError(f"{lacking[0]} is no https URL: {server.get(lacking[0])}", PUBLIC_URL)
    if "S256" not in get_list(server, "code_challenge_methods_supported"):
        raise CheckError("PKCE with S256 is not announced", "clients go no further: choose another issuer for --auth")
    if "code" not in get_list(server, "response_types_supported"):
        raise CheckError("the response type code is not announced", "choose another issuer for --auth")
    empty = [name for name, value in server.items() if value is None]
    if empty:
        raise CheckError(f"{empty[0]} is null", "clients refuse that: it has to be left out")
    told = "code, S256" + (", iss" if server.get("authorization_response_iss_parameter_supported") else "")
    if server.get("client_id_metadata_document_supported") is not True or "none" in get_list(server, METHODS):
        return told
    if server.get("registration_endpoint") is None:
        raise CheckError(
            f'clients come by metadata document, and those without a secret do not: no "none" in {METHODS}',
            "claude.ai needs it: have the issuer take and announce it, or choose another for --auth",
        )
    return f'{told}; no "none" in {METHODS}: claude.ai comes by registration alone'


async def keys(target: RemoteTarget) -> str:
    """Check the keys of tokens that are JWTs, which their verifiers fetch."""
    url = target.server_metadata.get("jwks_uri")
    if url is None:
        raise CheckSkippedError("its metadata names none")
    if not is_secure_url(url):
        raise CheckError(f"jwks_uri is no https URL: {url}", PUBLIC_URL)
    remedy = target.own_remedy(f"route {urlsplit(str(url)).path} to the server: {PROXY}")
    _, told = await target.probe.fetch_json(str(url), remedy)
    found = get_list(told, "keys")
    if not found:
        raise CheckError(f"{url} has no key: no token can be verified", target.own_remedy("look at the server's log"))
    return f"{len(found)} at {url}"


async def cors(target: RemoteTarget) -> str:
    for url, got in target.cors_documents:
        if got.headers.get("access-control-allow-origin") not in ("*", ORIGIN["Origin"]):
            raise CheckError(f"{url} may not be read by web pages", "let the proxy keep Access-Control-Allow-Origin")
    preflight = {**ORIGIN, "Access-Control-Request-Method": "POST"}
    got = await target.probe.send("OPTIONS", str(target.server_metadata.get("token_endpoint")), preflight)
    if got.status >= 300 or got.headers.get("access-control-allow-origin") not in ("*", ORIGIN["Origin"]):
        raise CheckError("the token endpoint refuses web pages", "browser clients fail: let OPTIONS pass the proxy")
    return "documents and token endpoint are open to pages"


async def registration(target: RemoteTarget) -> str:
    endpoint = target.server_metadata.get("registration_endpoint")
    by_document = target.server_metadata.get("client_id_metadata_document_supported") is True
    if endpoint is None:
        raise CheckSkippedError("by metadata document alone" if by_document else "by toolgate client add alone")
    client = {
        "client_name": "toolgate doctor",
        "redirect_uris": [REDIRECT],
        "grant_types": ["authorization_code", "refresh_token"],
        "response_types": ["code"],
        "token_endpoint_auth_method": "none",
    }
    kind = {"Content-Type": "application/json"}
    got = await target.probe.send("POST", str(endpoint), kind, msgspec.json.encode(client))
    told = got.json()
    if got.status != 201 or not isinstance(told.get("client_id"), str):
        raise CheckError(f"{endpoint} answers {got.status} {told.get('error', '')}".rstrip(), target.own_remedy(PROXY))
    target.client_id, target.registration = told["client_id"], told
    empty = [name for name, value in told.items() if value is None]
    if empty:
        raise CheckError(f"{empty[0]} in its answer is null", "clients refuse that: it has to be left out")
    return "dynamic" + (" and by metadata document" if by_document else "")


async def sign_in_page(target: RemoteTarget) -> str:
    endpoint = str(target.server_metadata["authorization_endpoint"])
    digest = hashlib.sha256(secrets.token_bytes(32)).digest()
    query = {
        "response_type": "code",
        "client_id": target.client_id,
        "redirect_uri": REDIRECT,
        "code_challenge": base64.urlsafe_b64encode(digest).decode().rstrip("="),
        "code_challenge_method": "S256",
        "resource": target.url,
        "state": secrets.token_urlsafe(16),
    }
    url = f"{endpoint}{'&' if '?' in endpoint else '?'}{urlencode(query)}"
    got = await target.probe.send("GET", url, {"Accept": "text/html"})
    for _ in range(MAX_REDIRECTS):
        if not 300 <= got.status < 400:
            break
        url = urljoin(url, got.headers.get("location", ""))
        if url.startswith(REDIRECT):
            said = dict(parse_qsl(urlsplit(url).query))
            error = f"{said.get('error', '')} {said.get('error_description', '')}".strip()
            raise CheckError(f"it sends back: {error}", target.own_remedy("the server's log says more"))
        if not is_secure_url(url):
            raise CheckError(f"it sends to {url}", PUBLIC_URL)
        got = await target.probe.send("GET", url, {"Accept": "text/html"})
    shown = url.partition("?")[0]
    if got.status != 200 or not got.is_page:
        raise CheckError(f"{shown} answers {got.status}", target.own_remedy(PROXY))
    if target.is_toolgate and get_origin(shown) == get_origin(target.url) and "set-cookie" not in got.headers:
        raise CheckError(
            f"the cookie of {shown} does not come through",
            "sign-in fails without it: have the proxy pass Set-Cookie and Cookie",
        )
    return shown


async def token_endpoint(target: RemoteTarget) -> str:
    """Check that an unknown client gets invalid_client, so that it registers again, and a bad code invalid_grant."""
    endpoint = str(target.server_metadata.get("token_endpoint"))
    notes = ""
    tries: list[tuple[str, str, tuple[int, ...]]] = [("nobody-" + secrets.token_hex(8), "invalid_client", (401, 400))]
    tries += [(target.client_id, "invalid_grant", (400,))] if target.client_id else []
    for client, error, statuses in tries:
        form = {
            "grant_type": "authorization_code",
            "client_id": client,
            "code": secrets.token_urlsafe(32),
            "redirect_uri": REDIRECT,
            "code_verifier": secrets.token_urlsafe(32),
        }
        kind = {"Content-Type": "application/x-www-form-urlencoded"}
        got = await target.probe.send("POST", endpoint, kind, urlencode(form).encode())
        if got.status not in statuses or got.json().get("error") != error:
            said = f"{got.status} {got.json().get('error', 'without an error of OAuth')}"
            remedy = target.own_remedy(INTERCEPTED if got.is_page else PROXY)
            raise CheckError(f"{endpoint} answers {said} where {statuses[0]} {error} belongs", remedy)
        if got.status != statuses[0]:
            notes = f"; it says {got.status} for {error}: some clients register again only on {statuses[0]}"
    return f"errors are as they should be{notes}"


async def clean_up(target: RemoteTarget) -> str:
    """Remove the client registered above (RFC 7592), at a URI from the server only if it is on the same host."""
    if not target.client_id:
        raise CheckSkippedError("no client was registered")
    told = target.registration
    uri, key = told.get("registration_client_uri"), told.get("registration_access_token")
    home = get_origin(str(target.server_metadata.get("registration_endpoint")))
    is_own = is_secure_url(uri) and get_origin(str(uri)) == home
    if is_own and isinstance(key, str) and key.isascii() and key.isprintable():
        got = await target.probe.send("DELETE", str(uri), {"Authorization": f"Bearer {key}"})
        if got.status == 204:
            return "the client is gone"
    raise CheckSkippedError(f"test client {target.client_id} expires by itself, at a Toolgate after a week")

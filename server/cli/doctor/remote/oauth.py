"""How a client becomes known, and a person signs in: registration, the page, what the token endpoint says to those it
does not know, and the end of the client that was registered here."""

import base64
import hashlib
import secrets
from urllib.parse import parse_qsl, urlencode, urljoin, urlsplit

import msgspec

from toolgate.server.cli.doctor.remote.connection import INTERCEPTED
from toolgate.server.cli.doctor.remote.http import PROXY, PUBLIC_URL, get_origin, is_secure_url
from toolgate.server.cli.doctor.remote.target import RemoteTarget
from toolgate.server.cli.doctor.report import CheckFailedError, CheckSkippedError

REDIRECT = "http://127.0.0.1:33418/"  # nobody listens: a code is never asked for
MAX_REDIRECTS = 5  # redirects from /authorize to the page a person sees


async def registration(target: RemoteTarget) -> str:
    endpoint = target.server_metadata.get("registration_endpoint")
    by_document = target.server_metadata.get("client_id_metadata_document_supported") is True
    if endpoint is None:
        raise CheckSkippedError(
            "by metadata document alone" if by_document else "by the operator alone: toolgate client add"
        )
    asked = {
        "client_name": "toolgate doctor",
        "redirect_uris": [REDIRECT],
        "grant_types": ["authorization_code", "refresh_token"],
        "response_types": ["code"],
        "token_endpoint_auth_method": "none",
    }
    got = await target.probe.send(
        "POST", str(endpoint), {"Content-Type": "application/json"}, msgspec.json.encode(asked)
    )
    told = got.json()
    if got.status != 201 or not isinstance(told.get("client_id"), str):
        raise CheckFailedError(
            f"{endpoint} answers {got.status} {told.get('error', '')}".rstrip(), target.own_remedy(PROXY)
        )
    target.client_id, target.registration = told["client_id"], told
    empty = [name for name, value in told.items() if value is None]
    if empty:
        raise CheckFailedError(f"{empty[0]} in its answer is null", "clients refuse that: it has to be left out")
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
            raise CheckFailedError(f"it sends back: {error}", target.own_remedy("the server's log says more"))
        if not is_secure_url(url):
            raise CheckFailedError(f"it sends to {url}", PUBLIC_URL)
        got = await target.probe.send("GET", url, {"Accept": "text/html"})
    shown = url.partition("?")[0]
    if got.status != 200 or not got.is_page:
        raise CheckFailedError(f"{shown} answers {got.status}", target.own_remedy(PROXY))
    if target.is_toolgate and get_origin(shown) == get_origin(target.url) and "set-cookie" not in got.headers:
        raise CheckFailedError(
            f"the cookie of {shown} does not come through", "nobody can sign in: have Set-Cookie and Cookie pass"
        )
    return shown


async def token_endpoint(target: RemoteTarget) -> str:
    """A client nobody knows is to hear invalid_client, so that it registers anew; a bad code invalid_grant."""
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
            remedy = INTERCEPTED if got.is_page else PROXY
            raise CheckFailedError(
                f"{endpoint} answers {said} where {statuses[0]} {error} belongs", target.own_remedy(remedy)
            )
        if got.status != statuses[0]:
            notes = f"; it says {got.status} for {error}: some clients register anew on {statuses[0]} alone"
    return f"errors are as they should be{notes}"


async def clean_up(target: RemoteTarget) -> str:
    """Of the client registered above, by RFC 7592. The URI is the server's word: it goes no further than to where
    the client was registered."""
    if not target.client_id:
        raise CheckSkippedError("no client was registered")
    told = target.registration
    uri, key = told.get("registration_client_uri"), told.get("registration_access_token")
    home = get_origin(str(target.server_metadata.get("registration_endpoint")))
    if (
        is_secure_url(uri)
        and get_origin(str(uri)) == home
        and isinstance(key, str)
        and key.isascii()
        and key.isprintable()
    ):
        got = await target.probe.send("DELETE", str(uri), {"Authorization": f"Bearer {key}"})
        if got.status == 204:
            return "the client is gone"
    raise CheckSkippedError(f"the client {target.client_id} stays until the server forgets it, a Toolgate after a week")

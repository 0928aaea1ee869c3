"""Check the way to the server: name, connection, TLS, redirects, clock, and the answer to a call without a token."""

import asyncio
import secrets
import time
from email.utils import parsedate_to_datetime
from urllib.parse import urlsplit, urlunsplit

import msgspec

from toolgate.server.cli.doctor.report import CheckError, CheckFinding, CheckNote, CheckSkippedError
from toolgate.server.cli.mcp_client.client import initialize_params
from toolgate.server.cli.mcp_client.foreign_urls import HostUnknownError, resolve_host
from toolgate.server.cli.mcp_client.http import close_connection
from toolgate.server.config.types import is_loopback
from toolgate.server.features.remote_checks.target import PROXY, STATUSES, TIMEOUT, RemoteTarget
from toolgate.server.protocol.revisions import NEWEST_WITH_SESSION
from toolgate.tools.api.outbound.address_policy import AddressPolicy, check_address
from toolgate.tools.api.outbound.vetted_client import describe_error

PARAMS = initialize_params(NEWEST_WITH_SESSION.name, can_answer=False)
INITIALIZE = msgspec.json.encode({"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": PARAMS})
# Seconds before a certificate's expiry that are reported; of a short one the last quarter: proxies renew at a third
RENEW_BEFORE = 14 * 86_400.0
MAX_CLOCK_DRIFT = 120.0  # seconds between its clock and ours: tokens live for minutes
HTTPS_PORT, HTTP_PORT = 443, 80  # the ports of a URL that names none
CERTIFICATE_REMEDIES = {  # OpenSSL's error (X509_V_ERR_…) → what to do
    9: "set the clock, here or where the certificate is made: it begins later than it is now",
    10: "renew the certificate, and let the proxy do that by itself from now on",
    62: "have the proxy serve a certificate for {host}: this one is for another name",
    64: "paste the URL with the name that the certificate is for, or get one for {host}",
}
NETWORK_KINDS = ("private", "carrier-grade NAT", "loopback", "link-local", "site-local")  # of networks that people use
TRUST_HERE = (
    "trust the authority that signed it: SSL_CERT_FILE=root.crt toolgate doctor …, and the same for each client"
)
INTERCEPTED = "have the proxy pass errors on as they come: proxy_intercept_errors off"


async def name(target: RemoteTarget) -> CheckFinding:
    host = target.parts.hostname or ""
    try:
        addresses = await resolve_host(host)
    except HostUnknownError as fault:
        remedy = "set its A record, or the record of your private network, and check from a machine that uses it"
        raise CheckError(str(fault), remedy) from None
    told = f"{host} is {', '.join(addresses)}"
    if is_loopback(host):
        return f"{told}: this machine; hosted clients can't reach it"
    kinds = {each: kind for each in addresses if (kind := check_address(each, AddressPolicy())) is not None}
    inside = "; ".join(f"{each} is {kind}" for each, kind in kinds.items())
    if len(kinds) == len(addresses) and set(kinds.values()) <= set(NETWORK_KINDS):
        target.is_private = True
        finding = inside if host in kinds else f"{told}: {', '.join(sorted(set(kinds.values())))}"
        return CheckNote(finding, "only clients in this network reach it: claude.ai and ChatGPT don't")
    if inside:
        remedy = "hosted clients reach only public addresses; every DNS record of this name must be one"
        raise CheckError(inside, remedy)
    if all(":" in each for each in addresses):
        raise CheckError(told, "add an A record: some platforms have no IPv6")
    return told


async def connection(target: RemoteTarget) -> str:
    host, port = target.parts.hostname or "", target.port
    try:
        async with asyncio.timeout(TIMEOUT):
            _, sink = await asyncio.open_connection(host, port)
    except OSError as error:
        reason = "no answer in time" if isinstance(error, TimeoutError) else describe_error(error)
        remedy = "start the server, and have this address and port lead to it"
        raise CheckError(f"{host}, port {port}: {reason}", remedy) from None
    await close_connection(sink)
    return f"port {port} is open"


async def tls(target: RemoteTarget) -> CheckFinding:
    import ssl  # start-up

    host = target.parts.hostname or ""
    if target.parts.scheme == "http":
        if is_loopback(host):
            raise CheckSkippedError("http on loopback has none")
        raise CheckError("the URL is http", "serve https: a proxy in front with a certificate will do")
    try:
        async with asyncio.timeout(TIMEOUT):
            _, sink = await asyncio.open_connection(host, target.port, ssl=True)
    except ssl.SSLCertVerificationError as error:
        target.has_tls_fault = True
        chain = TRUST_HERE if target.is_private else "serve the whole chain of a certificate that browsers trust"
        remedy = CERTIFICATE_REMEDIES.get(error.verify_code, chain)
        raise CheckError(error.verify_message, remedy.format(host=host)) from None
    except (OSError, TimeoutError) as error:
        target.has_tls_fault = True
        reason = "no connection in time" if isinstance(error, TimeoutError) else describe_error(error)
        raise CheckError(reason, "have the proxy speak TLS there") from None
    cert = sink.get_extra_info("peercert") or {}
    await close_connection(sink)
    if "notAfter" not in cert:
        return "verified"
    end, begin = ssl.cert_time_to_seconds(cert["notAfter"]), ssl.cert_time_to_seconds(cert["notBefore"])
    left = end - time.time()
    if left < min(RENEW_BEFORE, (end - begin) / 4):
        told = f"{left / 86_400:.0f} days" if left >= 2 * 86_400 else f"{left / 3600:.0f} hours"
        return CheckNote(f"verified; it ends in {told}", "renew it; better, let the proxy do so")
    return "verified"


async def https_alone(target: RemoteTarget) -> CheckFinding:
    """Check that http redirects to https or is closed: a token once sent in clear text is lost."""
    if target.parts.scheme != "https" or target.port != HTTPS_PORT:
        raise CheckSkippedError("the URL names a port of its own")
    host = target.parts.hostname or ""
    place = f"[{host}]:{HTTP_PORT}" if ":" in host else f"{host}:{HTTP_PORT}"
    clear = urlunsplit(("http", place, target.parts.path, "", ""))
    try:
        got = await target.probe.send("POST", clear, {}, INITIALIZE, clear=True)
    except CheckError:
        return f"port {HTTP_PORT} answers no http"
    if got.is_mcp or "bearer" in got.headers.get("www-authenticate", "").lower():
        raise CheckError(f"{clear} serves MCP too: tokens may go in the clear", "have the proxy redirect http to https")
    met = await target.post({}, INITIALIZE)
    if "strict-transport-security" not in met.headers:
        return CheckNote(
            f"http is answered {got.status}, and browsers aren't told to stay with https",
            "have the proxy send Strict-Transport-Security: max-age=31536000",
        )
    return f"http is answered {got.status}, and browsers are told to stay with https"


async def no_redirect(target: RemoteTarget) -> str:
    if target.has_tls_fault:
        raise CheckSkippedError("needs TLS")
    for url in (target.url, target.url.rstrip("/") + "/"):
        got = await target.probe.send("POST", url, {}, INITIALIZE)
        if 300 <= got.status < 400:
            where = got.headers.get("location", "somewhere")
            raise CheckError(f"{url} redirects to {where}", f"tokens get lost there; {PROXY}")
        target.first_response = target.first_response or got
    return "neither with nor without a slash at the end"


async def version(target: RemoteTarget) -> CheckFinding:
    assert target.first_response is not None
    if target.first_response.version == "HTTP/1.0":
        return CheckNote(
            "it answers in HTTP/1.0: a stream can't be told from one that broke off",
            "have the proxy speak HTTP/1.1 or 2 to both sides: proxy_http_version 1.1",
        )
    return target.first_response.version


async def clock(target: RemoteTarget) -> CheckFinding:
    """Compare the Date header with our clock. It does not show which of the two is wrong."""
    assert target.first_response is not None
    try:
        ahead = parsedate_to_datetime(target.first_response.headers.get("date", "")).timestamp() - time.time()
    except ValueError:
        raise CheckSkippedError("its answers have no Date") from None
    if abs(ahead) > MAX_CLOCK_DRIFT:
        raise CheckError(
            f"its clock is {abs(ahead):,.0f} s {'ahead of' if ahead > 0 else 'behind'} ours",
            "set both by NTP: tokens and certificates go by them",
        )
    return "as on this machine"


async def server(target: RemoteTarget) -> CheckFinding:
    """Check that a Toolgate answers, and that it is ready."""
    got = await target.probe.send("GET", f"{target.public_url}/ready", {"Accept": "application/json"})
    told = got.json()
    target.is_toolgate = isinstance(told.get("status"), str) and "sandbox" in told
    if not target.is_toolgate:
        raise CheckSkippedError(
            f"{target.public_url}/ready is answered {got.status}: no Toolgate, or the proxy does not pass it on"
        )
    if got.status != 200:
        raise CheckError(f"it is not ready: {told['status']}", "wait until it has started or ended; then see its log")
    if told["sandbox"] == "none":
        return CheckNote("a Toolgate without a sandbox", "toolgate doctor on that machine says what it lacks")
    return f"a Toolgate, ready, its sandbox {told['sandbox']}"


async def challenge(target: RemoteTarget) -> str:
    got = target.unauthorized_response = await target.post({}, INITIALIZE)
    if got.status == 200 and got.is_mcp:
        raise CheckError("it answers without a token", "anyone may call it: serve with --auth oauth")
    if got.status == 200:
        raise CheckError(
            "this is no MCP server: it answers 200 without JSON-RPC",
            "paste the URL with /mcp at its end, and have the proxy lead that path to Toolgate",
        )
    if got.status != 401:
        remedy = STATUSES.get(got.status, PROXY if got.status < 500 else "start the server, or fix the proxy")
        if got.status == 404 and urlsplit(target.public_url).path:
            remedy += f", or take {urlsplit(target.public_url).path} off, as --public-url has it"
        raise CheckError(f"it answers {got.status} to a call without a token, not 401", remedy)
    target.challenge = got.challenge
    is_bearer = got.headers.get("www-authenticate", "").lower().startswith("bearer ")
    if not is_bearer or "resource_metadata" not in target.challenge:
        raise CheckError("its 401 has no WWW-Authenticate: Bearer with resource_metadata", PROXY)
    return f"401, scope {target.challenge.get('scope', 'none')}"


async def errors(target: RemoteTarget) -> CheckFinding:
    """Check that an error's body arrives: a client can't read a proxy's own error page."""
    assert target.unauthorized_response is not None
    if target.unauthorized_response.is_page:
        raise CheckError("its 401 comes with a page of the proxy's own", INTERCEPTED)
    return "errors reach the client unchanged"


async def made_up_token(target: RemoteTarget) -> str:
    """Check that a token arrives: a server without it asks for one again, instead of refusing it."""
    token = secrets.token_urlsafe(24)
    got = await target.post({"Authorization": f"Bearer {token}"}, INITIALIZE)
    if got.status == 200:
        raise CheckError("it takes a token that was made up", "look at what answers there: it is no Toolgate")
    if got.status != 401:
        raise CheckError(f"it answers {got.status} to one, not 401", STATUSES.get(got.status, PROXY))
    if got.challenge.get("error") != "invalid_token":
        raise CheckError(
            "it is answered like none at all: Authorization does not arrive", "have the proxy pass Authorization on"
        )
    return "refused as invalid_token: Authorization arrives"

"""To the server's door: its name, the connection, TLS, redirects, its clock, and what it says to who has no token."""

import asyncio
import secrets
import time
from email.utils import parsedate_to_datetime
from urllib.parse import urlsplit, urlunsplit

import msgspec

from toolgate.server.cli.doctor.remote.http import PROXY, STATUSES, TIMEOUT, parameters
from toolgate.server.cli.doctor.remote.state import Way
from toolgate.server.cli.doctor.report import Broken, Finding, Note, Skipped
from toolgate.server.cli.mcp_client.client import hello
from toolgate.server.cli.mcp_client.http import hang_up
from toolgate.server.config.types import is_loopback
from toolgate.server.protocol.revisions import NEWEST_WITH_SESSION

INITIALIZE = msgspec.json.encode(
    {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": hello(NEWEST_WITH_SESSION.name, asks=False)}
)
SOON = 14 * 86_400.0  # seconds before a certificate's end that it is told
DRIFT = 120.0  # seconds between its clock and ours: tokens live for minutes
ENCRYPTED, IN_CLEAR = 443, 80  # the ports of a URL that names none
CERTIFICATES = {  # what of one does not hold, as OpenSSL numbers it (X509_V_ERR_…) → what to do
    9: "set the clock, here or where the certificate is made: it begins later than it is now",
    10: "renew the certificate, and let the proxy do that by itself from now on",
    62: "have the proxy serve a certificate for {host}: this one is for another name",
    64: "paste the URL with the name that the certificate is for, or get one for {host}",
}
INTERCEPTED = "have the proxy pass errors on as they come: proxy_intercept_errors off"


async def name(way: Way) -> str:
    from toolgate.tools.web.address_policy import Allowed, check_address  # start-up

    host = way.parts.hostname or ""
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


async def connection(way: Way) -> str:
    host, port = way.parts.hostname or "", way.port
    try:
        async with asyncio.timeout(TIMEOUT):
            _, sink = await asyncio.open_connection(host, port)
    except OSError as error:
        raise Broken(
            f"{host}, port {port}: {error.strerror or str(error) or 'no answer in time'}",
            "start the server, and have this address and port lead to it",
        ) from None
    await hang_up(sink)
    return f"port {port} is open"


async def tls(way: Way) -> Finding:
    import ssl  # start-up

    host = way.parts.hostname or ""
    if way.parts.scheme == "http":
        if is_loopback(host):
            raise Skipped("http on loopback has none")
        raise Broken("the URL is http", "serve https: a proxy in front with a certificate will do")
    try:
        async with asyncio.timeout(TIMEOUT):
            _, sink = await asyncio.open_connection(host, way.port, ssl=True)
    except ssl.SSLCertVerificationError as error:
        remedy = CERTIFICATES.get(error.verify_code, "serve the whole chain of a certificate that browsers trust")
        raise Broken(error.verify_message, remedy.format(host=host)) from None
    except (OSError, TimeoutError) as error:
        reason = str(error) or "no connection in time"
        raise Broken(reason, "have the proxy speak TLS there") from None
    certificate = sink.get_extra_info("peercert") or {}
    await hang_up(sink)
    left = ssl.cert_time_to_seconds(certificate["notAfter"]) - time.time() if "notAfter" in certificate else SOON
    if left < SOON:
        return Note(f"verified; it ends in {left / 86_400:.0f} days", "renew it, and let the proxy do that by itself")
    return "verified"


async def https_alone(way: Way) -> Finding:
    """Whether somebody who forgets the s is sent on, or heard by all: a token that once went in the clear is lost."""
    if way.parts.scheme != "https" or way.port != ENCRYPTED:
        raise Skipped("the URL names a port of its own")
    host = way.parts.hostname or ""
    place = f"[{host}]:{IN_CLEAR}" if ":" in host else f"{host}:{IN_CLEAR}"
    clear = urlunsplit(("http", place, way.parts.path, "", ""))
    try:
        got = await way.wire.ask("POST", clear, {}, INITIALIZE, clear=True)
    except Broken:
        return "nobody answers http"
    if got.is_mcp or "bearer" in got.headers.get("www-authenticate", "").lower():
        raise Broken(f"{clear} serves MCP too: tokens may go in the clear", "have the proxy redirect http to https")
    met = await way.wire.ask("POST", way.url, {}, INITIALIZE)
    if "strict-transport-security" not in met.headers:
        return Note(
            f"http is answered {got.status}, and browsers aren't told to stay with https",
            "have the proxy send Strict-Transport-Security: max-age=31536000",
        )
    return f"http is answered {got.status}, and browsers are told to stay with https"


async def no_redirect(way: Way) -> str:
    for url in (way.url, way.url.rstrip("/") + "/"):
        got = await way.wire.ask("POST", url, {}, INITIALIZE)
        if 300 <= got.status < 400:
            where = got.headers.get("location", "somewhere")
            raise Broken(f"{url} redirects to {where}", f"tokens get lost there; {PROXY}")
        way.met = way.met or got
    return "neither with nor without a slash at the end"


async def version(way: Way) -> Finding:
    assert way.met is not None
    if way.met.version == "HTTP/1.0":
        return Note(
            "it answers in HTTP/1.0: a stream can't be told from one that broke off",
            "have the proxy speak HTTP/1.1 or 2 to both sides: proxy_http_version 1.1",
        )
    return way.met.version


async def clock(way: Way) -> Finding:
    """By the Date of its answers. Which of the two clocks is wrong is not to be known from here."""
    assert way.met is not None
    try:
        ahead = parsedate_to_datetime(way.met.headers.get("date", "")).timestamp() - time.time()
    except ValueError:
        raise Skipped("its answers have no Date") from None
    if abs(ahead) > DRIFT:
        raise Broken(
            f"its clock is {abs(ahead):,.0f} s {'ahead of' if ahead > 0 else 'behind'} ours",
            "set both by NTP: tokens and certificates go by them",
        )
    return "as ours"


async def server(way: Way) -> Finding:
    """Whether a Toolgate answers, and how it is."""
    got = await way.wire.ask("GET", f"{way.base}/ready", {"Accept": "application/json"})
    told = got.json()
    way.is_ours = isinstance(told.get("status"), str) and "sandbox" in told
    if not way.is_ours:
        raise Skipped(f"{way.base}/ready is answered {got.status}: no Toolgate, or the proxy keeps it to itself")
    if got.status != 200:
        raise Broken(f"it is not ready: {told['status']}", "wait until it has started or ended, then look at its log")
    if told["sandbox"] == "none":
        return Note("a Toolgate without a sandbox", "toolgate doctor on that machine says what it lacks")
    return f"a Toolgate, ready, its sandbox {told['sandbox']}"


async def challenged(way: Way) -> str:
    got = way.refused = await way.wire.ask("POST", way.url, {}, INITIALIZE)
    if got.status == 200 and got.is_mcp:
        raise Broken("it answers without a token", "anybody may call: serve with --auth oauth")
    if got.status == 200:
        raise Broken(
            "this is no MCP server: it answers 200 without JSON-RPC",
            "paste the URL with /mcp at its end, and have the proxy lead that path to Toolgate",
        )
    if got.status != 401:
        remedy = STATUSES.get(got.status, PROXY if got.status < 500 else "start the server, or mend the proxy")
        if got.status == 404 and urlsplit(way.base).path:
            remedy += f", or take {urlsplit(way.base).path} off, as --public-url has it"
        raise Broken(f"it answers {got.status} to a call without a token, not 401", remedy)
    header = got.headers.get("www-authenticate", "")
    scheme, _, rest = header.partition(" ")
    way.challenge = parameters(rest)
    if scheme.lower() != "bearer" or "resource_metadata" not in way.challenge:
        raise Broken("its 401 has no WWW-Authenticate: Bearer with resource_metadata", PROXY)
    return f"401, scope {way.challenge.get('scope', 'none')}"


async def errors(way: Way) -> Finding:
    """What the server says in a refusal has to come with it: a page of the proxy's own can't be read by a client."""
    assert way.refused is not None
    if way.refused.is_page:
        raise Broken("its 401 comes with a page of the proxy's own", INTERCEPTED)
    return "they come as the server says them"


async def made_up_token(way: Way) -> str:
    """A token that is refused as one has arrived: where a proxy strips it, the server only asks for one again."""
    token = secrets.token_urlsafe(24)
    got = await way.wire.ask("POST", way.url, {"Authorization": f"Bearer {token}"}, INITIALIZE)
    if got.status == 200:
        raise Broken("it takes a token that was made up", "look at what answers there: it is no Toolgate")
    if got.status != 401:
        raise Broken(f"it answers {got.status} to one, not 401", STATUSES.get(got.status, PROXY))
    if parameters(got.headers.get("www-authenticate", "").partition(" ")[2]).get("error") != "invalid_token":
        raise Broken(
            "it is answered like none at all: Authorization does not arrive", "have the proxy pass Authorization on"
        )
    return "refused as invalid_token: Authorization arrives"

"""Check a signed-in client's calls in both eras, a large message, event streams, and the end of a session."""

from typing import Any

import msgspec

from toolgate.server.base.errors import UsageError
from toolgate.server.cli.doctor.report import ACCESS_NEEDED, CheckError, CheckFinding, CheckNote, CheckSkippedError
from toolgate.server.cli.mcp_client.client import CLIENT_IDENTITY
from toolgate.server.cli.mcp_client.http import bearer_headers
from toolgate.server.features.remote_checks.connection import INITIALIZE
from toolgate.server.features.remote_checks.target import PROXY, STATUSES, RemoteTarget
from toolgate.server.protocol import request_meta
from toolgate.server.protocol.revisions import NEWEST_WITH_SESSION, STATELESS

LARGE = 2 * 2**20  # bytes: an image in base64, and above nginx's default limit of 1 MiB
MADE_UP_REVISION = "1900-01-01"  # no revision
LET_THROUGH = "have the proxy pass {} on as it comes"
KEEPS_NONE = "look at the proxy's log: most keep large bodies in a folder of theirs, which has to be writable"
PING = msgspec.json.encode({"jsonrpc": "2.0", "id": 2, "method": "ping", "params": {}})
TOO_LARGE = "have the proxy take 16 MiB, as the server does: client_max_body_size 16m"
QUIET_TIME = 20.0  # seconds: longer than the pause between two heartbeats of a Toolgate
PING_INTERVAL = 15.0  # seconds between those
BUFFERS = "have the proxy pass event streams on as they come: proxy_buffering off, gzip off"
COMPRESSES = "have the proxy leave text/event-stream as it is: gzip off, or name other types alone"
IMPATIENT = "have the proxy hold quiet streams for minutes: proxy_read_timeout 1h"
READABLE = {"Accept": "text/event-stream", "Accept-Encoding": "gzip, br, zstd"}


async def first_call(target: RemoteTarget) -> CheckFinding:
    token = target.token
    if not token:
        raise CheckSkippedError(f"not checked: {ACCESS_NEEDED}")
    try:
        headers = bearer_headers(token, target.url)
    except UsageError as error:
        raise CheckError(str(error), "give the access token alone, and an https URL") from None
    got = await target.post(headers, INITIALIZE)
    if got.status == 401:
        told = got.challenge.get("error_description") or got.challenge.get("error") or "no token arrived there"
        raise CheckError(f"401: {told}", "take a fresh token, or have the proxy pass Authorization on")
    if got.status != 200 or b'"protocolVersion"' not in got.body:
        raise CheckError(f"initialize is answered {got.status}", STATUSES.get(got.status, PROXY))
    target.auth_headers = headers
    id = got.headers.get("mcp-session-id")
    if id is not None:
        target.session_headers = {**headers, "Mcp-Session-Id": id, "MCP-Protocol-Version": NEWEST_WITH_SESSION.name}
    return _describe_server(got.json().get("result"))


def _describe_server(result: Any) -> CheckFinding:
    if not isinstance(result, dict) or not isinstance(result.get("serverInfo"), dict):
        return "initialize is answered"
    who, revision = result["serverInfo"], result.get("protocolVersion")
    told = f"{who.get('name')} {who.get('version')}, revision {revision}"
    if revision != NEWEST_WITH_SESSION.name:
        return CheckNote(f"an old server answers: {told}", f"upgrade it: clients ask for {NEWEST_WITH_SESSION.name}")
    return told


async def session(target: RemoteTarget) -> str:
    """Check that Mcp-Session-Id comes with the answer to initialize, and arrives with the next message."""
    target.require_token()
    got = await target.post(target.session_headers or target.auth_headers, PING)
    if got.status == 200:
        return "its id comes and arrives" if target.session_headers else "none: this server keeps none"
    if not target.session_headers:
        raise CheckError(
            "the answer to initialize has lost its Mcp-Session-Id",
            LET_THROUGH.format("the response header Mcp-Session-Id"),
        )
    if got.status == 404:
        raise CheckError(
            "its Mcp-Session-Id is not known when it comes back: changed on the way, or another server answers",
            f"{LET_THROUGH.format('Mcp-Session-Id')}, and have all of a session go to one server",
        )
    if b"Mcp-Session-Id is missing" in got.body:
        raise CheckError("Mcp-Session-Id does not arrive", LET_THROUGH.format("the request header Mcp-Session-Id"))
    error = got.json().get("error")
    text = error.get("message", "") if isinstance(error, dict) else ""
    raise CheckError(f"its second message is answered {got.status} {text}".rstrip(), STATUSES.get(got.status, PROXY))


async def protocol_version(target: RemoteTarget) -> str:
    """Check that an unknown protocol version arrives and is refused."""
    target.require_session()
    got = await target.post({**target.session_headers, "MCP-Protocol-Version": MADE_UP_REVISION}, PING)
    if got.status == 200:
        raise CheckError(
            "MCP-Protocol-Version does not arrive: a made-up one is taken",
            LET_THROUGH.format("the request header MCP-Protocol-Version"),
        )
    return "a made-up one is refused: MCP-Protocol-Version arrives"


async def newest_revision(target: RemoteTarget) -> str:
    """Check a call of the stateless era, which repeats its body's values in headers."""
    target.require_token()
    newest = next(iter(STATELESS))
    meta = {request_meta.VERSION: newest, request_meta.CAPABILITIES: {}, request_meta.CLIENT: CLIENT_IDENTITY}
    headers = {**target.auth_headers, "MCP-Protocol-Version": newest, "Mcp-Method": "server/discover"}
    got = await target.post(headers, _message("server/discover", {"_meta": meta}))
    if got.status == 200:
        return f"{newest} is spoken"
    error = got.json().get("error")
    if isinstance(error, dict) and error.get("code") == -32020:  # HeaderMismatch
        raise CheckError(
            f"a header does not arrive: {error.get('message')}", LET_THROUGH.format("each header that begins with Mcp-")
        )
    raise CheckSkippedError(f"{newest} is answered {got.status}: clients speak an older one")


async def large_message(target: RemoteTarget) -> str:
    """Check a message larger than many proxies accept. Without a token the server refuses it in another way."""
    padding = {"_meta": {"toolgate.example/padding": "x" * LARGE}}
    try:
        got = await target.post(target.session_headers or target.auth_headers, _message("ping", padding))
    except CheckError:
        if target.auth_headers:
            raise
        raise CheckSkippedError(f"not told without a token: {ACCESS_NEEDED}") from None
    if got.status == 413:
        raise CheckError(f"{LARGE // 2**20} MiB are too large for the proxy", TOO_LARGE)
    if target.auth_headers and got.status not in (200, 400, 404):  # those are the session's, and were reported above
        remedy = KEEPS_NONE if got.status >= 500 else TOO_LARGE
        raise CheckError(f"{LARGE // 2**20} MiB are answered {got.status}", remedy)
    return f"{LARGE // 2**20} MiB {'arrive' if target.auth_headers else 'are not refused by the proxy'}"


async def session_end(target: RemoteTarget) -> str:
    target.require_session()
    got = await target.probe.send("DELETE", target.url, target.session_headers)
    if got.status in (200, 202, 204):
        return "it can be ended"
    if got.status == 405 and not got.is_page and "allow" in got.headers:
        return "the server ends it by itself"
    raise CheckError(f"DELETE is answered {got.status}", "let DELETE pass the proxy: sessions are left over without")


def _message(method: str, params: dict[str, Any]) -> bytes:
    return msgspec.json.encode({"jsonrpc": "2.0", "id": 2, "method": method, "params": params})


async def event_streams(target: RemoteTarget) -> str:
    """Check the stream of the first call's session: a buffering proxy delays its beginning."""
    target.require_session()
    try:
        got = await target.probe.send("GET", target.url, {**target.session_headers, **READABLE})
    except CheckError as broken:
        raise CheckError(f"held back by a buffer: {broken}", BUFFERS) from None
    if got.status == 405:
        raise CheckSkippedError("the server has none")
    if got.status != 200:
        raise CheckError(f"a stream is answered {got.status}", STATUSES.get(got.status, PROXY))
    coding = got.headers.get("content-encoding", "identity")
    if coding != "identity":
        raise CheckError(f"they are compressed, by {coding}, which holds them back", COMPRESSES)
    if not got.headers.get("content-type", "").startswith("text/event-stream"):
        raise CheckError(f"a stream comes as {got.headers.get('content-type', 'nothing in particular')}", PROXY)
    if not got.body and target.is_toolgate:
        raise CheckError("held back by a buffer: a stream opens, and its first event does not come", BUFFERS)
    if not got.body:
        raise CheckSkippedError("one opens at once; no event came that could be held back")
    return "they come as they are sent"


async def quiet_stream(target: RemoteTarget) -> str:
    """Check that a stream with heartbeats only stays open: a proxy with a short timeout cuts all waiting clients."""
    ended, pieces = await target.probe.hold_stream(target.url, {**target.session_headers, **READABLE}, QUIET_TIME)
    if ended is not None:
        raise CheckError(f"a quiet stream is cut after {ended:.0f} s", IMPATIENT)
    if target.is_toolgate and pieces < 2 and QUIET_TIME > PING_INTERVAL:
        raise CheckError(f"held back by a buffer: no sign of life came in {QUIET_TIME:g} s", BUFFERS)
    return f"one stays open for {QUIET_TIME:g} s"

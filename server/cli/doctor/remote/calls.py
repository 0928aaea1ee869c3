"""What somebody who is signed in does: calls with the headers of both eras, a large one, and the end of a session."""

from typing import Any

import msgspec

from toolgate.server.cli.doctor.remote.connection import INITIALIZE
from toolgate.server.cli.doctor.remote.http import PROXY, STATUSES, Got, parameters
from toolgate.server.cli.doctor.remote.state import ONCE_SIGNED_IN, Way
from toolgate.server.cli.doctor.report import Broken, Finding, Note, Skipped
from toolgate.server.cli.mcp_client.client import CLIENT
from toolgate.server.cli.mcp_client.http import authorized
from toolgate.server.protocol import request_meta
from toolgate.server.protocol.errors import UsageError
from toolgate.server.protocol.revisions import NEWEST_WITH_SESSION, STATELESS

LARGE = 2 * 2**20  # bytes: an image in base64, and more than the 1 MiB at which nginx begins to refuse
MADE_UP = "1900-01-01"  # no revision
LET_THROUGH = "have the proxy pass {} on as it comes"
KEEPS_NONE = "look at the proxy's log: most keep large bodies in a folder of theirs, which has to be writable"
TOO_LARGE = "have the proxy take 16 MiB, as the server does: client_max_body_size 16m"


async def first_call(way: Way) -> Finding:
    token = way.token
    if not token:
        raise Skipped(f"not checked: {ONCE_SIGNED_IN}")
    try:
        headers = authorized(token, way.url)
    except UsageError as error:
        raise Broken(str(error), "give the access token alone, and an https URL") from None
    got = await way.wire.ask("POST", way.url, headers, INITIALIZE)
    if got.status == 401:
        why = parameters(got.headers.get("www-authenticate", "").partition(" ")[2])
        told = why.get("error_description") or why.get("error") or "no token arrived there"
        raise Broken(f"401: {told}", "take a fresh token, or have the proxy pass Authorization on")
    if got.status != 200 or b'"protocolVersion"' not in got.body:
        raise Broken(f"initialize is answered {got.status}", STATUSES.get(got.status, PROXY))
    way.signed_in = headers
    id = got.headers.get("mcp-session-id")
    if id is not None:
        way.session = {**headers, "Mcp-Session-Id": id, "MCP-Protocol-Version": NEWEST_WITH_SESSION.name}
    return _introduced(got.json().get("result"))


def _introduced(result: Any) -> Finding:
    if not isinstance(result, dict) or not isinstance(result.get("serverInfo"), dict):
        return "initialize is answered"
    who, revision = result["serverInfo"], result.get("protocolVersion")
    told = f"{who.get('name')} {who.get('version')}, revision {revision}"
    if revision != NEWEST_WITH_SESSION.name:
        return Note(f"an old server answers: {told}", f"upgrade it: clients ask for {NEWEST_WITH_SESSION.name}")
    return told


async def session(way: Way) -> str:
    """A session's second message: its id has to come with the answer to initialize, and to arrive with the next."""
    way.wants_token()
    got = await way.wire.ask("POST", way.url, way.session or way.signed_in, _ping())
    if got.status == 200:
        return "its id comes and arrives" if way.session else "none: this server keeps none"
    if not way.session:
        raise Broken(
            "the answer to initialize has lost its Mcp-Session-Id",
            LET_THROUGH.format("the response header Mcp-Session-Id"),
        )
    if got.status == 404:
        raise Broken(
            "its Mcp-Session-Id is not known when it comes back: changed on the way, or another server answers",
            f"{LET_THROUGH.format('Mcp-Session-Id')}, and have all of a session go to one server",
        )
    if b"Mcp-Session-Id is missing" in got.body:
        raise Broken("Mcp-Session-Id does not arrive", LET_THROUGH.format("the request header Mcp-Session-Id"))
    raise Broken(f"its second message is answered {got.status} {_why(got)}".rstrip(), STATUSES.get(got.status, PROXY))


async def protocol_version(way: Way) -> str:
    """One that is made up is refused, if it arrives."""
    way.wants_session()
    got = await way.wire.ask("POST", way.url, {**way.session, "MCP-Protocol-Version": MADE_UP}, _ping())
    if got.status == 200:
        raise Broken(
            "MCP-Protocol-Version does not arrive: a made-up one is taken",
            LET_THROUGH.format("the request header MCP-Protocol-Version"),
        )
    return "a made-up one is refused: MCP-Protocol-Version arrives"


async def newest_revision(way: Way) -> str:
    """A call of the era without sessions, whose headers mirror what is in it."""
    way.wants_token()
    newest = next(iter(STATELESS))
    meta = {request_meta.VERSION: newest, request_meta.CAPABILITIES: {}, request_meta.CLIENT: CLIENT}
    headers = {**way.signed_in, "MCP-Protocol-Version": newest, "Mcp-Method": "server/discover"}
    got = await way.wire.ask("POST", way.url, headers, _message("server/discover", {"_meta": meta}))
    if got.status == 200:
        return f"{newest} is spoken"
    error = got.json().get("error")
    if isinstance(error, dict) and error.get("code") == -32020:  # HeaderMismatch
        raise Broken(
            f"a header does not arrive: {error.get('message')}", LET_THROUGH.format("each header that begins with Mcp-")
        )
    raise Skipped(f"{newest} is answered {got.status}: clients speak an older one")


async def large_message(way: Way) -> str:
    """More than many a proxy takes as it comes. Without a token the server refuses it too, but otherwise."""
    padding = {"_meta": {"toolgate.example/padding": "x" * LARGE}}
    try:
        got = await way.wire.ask("POST", way.url, way.session or way.signed_in, _message("ping", padding))
    except Broken:
        if way.signed_in:
            raise
        raise Skipped(f"not told without a token: {ONCE_SIGNED_IN}") from None
    if got.status == 413:
        raise Broken(f"{LARGE // 2**20} MiB are too large for the proxy", TOO_LARGE)
    if way.signed_in and got.status not in (200, 400, 404):  # those are of the session, and told above
        remedy = KEEPS_NONE if got.status >= 500 else TOO_LARGE
        raise Broken(f"{LARGE // 2**20} MiB are answered {got.status}", remedy)
    return f"{LARGE // 2**20} MiB arrive" if way.signed_in else f"{LARGE // 2**20} MiB are not refused by the proxy"


async def session_end(way: Way) -> str:
    way.wants_session()
    got = await way.wire.ask("DELETE", way.url, way.session)
    if got.status in (200, 202, 204):
        return "it can be ended"
    if got.status == 405 and not got.is_page and "allow" in got.headers:
        return "the server ends it by itself"
    raise Broken(f"DELETE is answered {got.status}", "have the proxy let DELETE pass: sessions are left over without")


def _ping() -> bytes:
    return _message("ping", {})


def _message(method: str, params: dict[str, Any]) -> bytes:
    return msgspec.json.encode({"jsonrpc": "2.0", "id": 2, "method": method, "params": params})


def _why(got: Got) -> str:
    error = got.json().get("error")
    return str(error.get("message", "")) if isinstance(error, dict) else ""

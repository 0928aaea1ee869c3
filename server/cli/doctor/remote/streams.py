"""Event streams through whatever is between: as they come, and for as long as they are quiet."""

from toolgate.server.cli.doctor.remote.http import PROXY, STATUSES
from toolgate.server.cli.doctor.remote.target import RemoteTarget
from toolgate.server.cli.doctor.report import CheckFailedError, CheckSkippedError

QUIET_TIME = 20.0  # seconds: more than a Toolgate lets pass between two signs of life
PING_INTERVAL = 15.0  # seconds between those
BUFFERS = "have the proxy pass event streams on as they come: proxy_buffering off, gzip off"
COMPRESSES = "have the proxy leave text/event-stream as it is: gzip off, or name other types alone"
IMPATIENT = "have the proxy hold quiet streams for minutes: proxy_read_timeout 1h"
READABLE = {"Accept": "text/event-stream", "Accept-Encoding": "gzip, br, zstd"}


async def event_streams(target: RemoteTarget) -> str:
    """A stream that stays open, of the first call's session: a proxy that buffers holds its beginning back."""
    target.require_session()
    try:
        got = await target.probe.send("GET", target.url, {**target.session_headers, **READABLE})
    except CheckFailedError as broken:
        raise CheckFailedError(f"held back by a buffer: {broken}", BUFFERS) from None
    if got.status == 405:
        raise CheckSkippedError("the server has none")
    if got.status != 200:
        raise CheckFailedError(f"a stream is answered {got.status}", STATUSES.get(got.status, PROXY))
    if got.headers.get("content-encoding", "identity") != "identity":
        raise CheckFailedError(
            f"they are compressed, by {got.headers['content-encoding']}, which holds them back", COMPRESSES
        )
    if not got.headers.get("content-type", "").startswith("text/event-stream"):
        raise CheckFailedError(f"a stream comes as {got.headers.get('content-type', 'nothing in particular')}", PROXY)
    if not got.body and target.is_toolgate:
        raise CheckFailedError("held back by a buffer: a stream opens, and its first event does not come", BUFFERS)
    if not got.body:
        raise CheckSkippedError("one opens at once; no event came that could be held back")
    return "they come as they are sent"


async def quiet_stream(target: RemoteTarget) -> str:
    """Nothing happens on it but signs of life: whoever cuts it before they come cuts every client that waits."""
    ended, pieces = await target.probe.hold_stream(target.url, {**target.session_headers, **READABLE}, QUIET_TIME)
    if ended is not None:
        raise CheckFailedError(f"a quiet stream is cut after {ended:.0f} s", IMPATIENT)
    if target.is_toolgate and pieces < 2 and QUIET_TIME > PING_INTERVAL:
        raise CheckFailedError(f"held back by a buffer: no sign of life came in {QUIET_TIME:g} s", BUFFERS)
    return f"one stays open for {QUIET_TIME:g} s"

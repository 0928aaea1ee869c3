"""Event streams through whatever is between: as they come, and for as long as they are quiet."""

from toolgate.server.cli.doctor.remote.http import PROXY, STATUSES
from toolgate.server.cli.doctor.remote.state import Way
from toolgate.server.cli.doctor.report import Broken, Skipped

QUIET = 20.0  # seconds: more than a Toolgate lets pass between two signs of life
PULSE = 15.0  # seconds between those
BUFFERS = "have the proxy pass event streams on as they come: proxy_buffering off, gzip off"
COMPRESSES = "have the proxy leave text/event-stream as it is: gzip off, or name other types alone"
IMPATIENT = "have the proxy hold quiet streams for minutes: proxy_read_timeout 1h"
READABLE = {"Accept": "text/event-stream", "Accept-Encoding": "gzip, br, zstd"}


async def event_streams(way: Way) -> str:
    """A stream that stays open, of the first call's session: a proxy that buffers holds its beginning back."""
    way.wants_session()
    try:
        got = await way.wire.ask("GET", way.url, {**way.session, **READABLE})
    except Broken as broken:
        raise Broken(f"held back by a buffer: {broken}", BUFFERS) from None
    if got.status == 405:
        raise Skipped("the server has none")
    if got.status != 200:
        raise Broken(f"a stream is answered {got.status}", STATUSES.get(got.status, PROXY))
    if got.headers.get("content-encoding", "identity") != "identity":
        raise Broken(f"they are compressed, by {got.headers['content-encoding']}, which holds them back", COMPRESSES)
    if not got.headers.get("content-type", "").startswith("text/event-stream"):
        raise Broken(f"a stream comes as {got.headers.get('content-type', 'nothing in particular')}", PROXY)
    if not got.body and way.is_ours:
        raise Broken("held back by a buffer: a stream opens, and its first event does not come", BUFFERS)
    if not got.body:
        raise Skipped("one opens at once; no event came that could be held back")
    return "they come as they are sent"


async def quiet_stream(way: Way) -> str:
    """Nothing happens on it but signs of life: whoever cuts it before they come cuts every client that waits."""
    ended, pieces = await way.wire.hold(way.url, {**way.session, **READABLE}, QUIET)
    if ended is not None:
        raise Broken(f"a quiet stream is cut after {ended:.0f} s", IMPATIENT)
    if way.is_ours and pieces < 2 and QUIET > PULSE:
        raise Broken(f"held back by a buffer: no sign of life came in {QUIET:g} s", BUFFERS)
    return f"one stays open for {QUIET:g} s"

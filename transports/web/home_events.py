"""Send the first page's script what changes, as a stream of events. Raw ASGI.

    part    {"name", "html"}: a new version of a part of the page, made by the page's own template
    output  {"id", "text", "first"?}: output of a background task; with `first` it replaces what was there
    bye     {}: the visitor has lost access

A stream lives no longer than the sign-in it was opened with: the visitor is identified again every few seconds. While
the database is away, a recent visitor gets only the parts about this server. A slow reader delays only its own stream,
and at most one piece of output waits for it.
"""

import asyncio
import contextlib
import json
import logging
import secrets
import time
from collections import Counter
from collections.abc import AsyncIterator, Mapping
from typing import Any

from starlette.requests import Request

from toolgate.server.base.errors import StateError
from toolgate.server.calls.dashboard import CHUNK
from toolgate.transports.http.requests.asgi import Receive, Scope, Send, refuse
from toolgate.transports.http.stream_response import HEADERS, OPEN
from toolgate.transports.web.home import PAGE, SERVER_PARTS, HomePage
from toolgate.transports.web.http import BadFormError
from toolgate.transports.web.page_context import FORM_TIME, Visitor, principal_of

MAX_EACH = 8  # live pages of one person; one more is refused
MAX_ALL = 512
RECHECK = 3.0  # seconds until the visitor is identified again, and unannounced changes are looked for
PACE = 0.4  # seconds between two updates: a flood of calls costs no more
REST = 10  # pause after an update, as a multiple of its cost
LONGEST_REST = 3.0  # seconds: an update that took longer than a tenth of it has waited, for a node or a database
HEALTH_AGE = 1.0  # seconds until what is shown of this server is looked at again
UPDATE_WAIT = 1.0  # seconds that a stream waits for an update: without a database it must go on to say so
PULSE = 15.0  # seconds a stream may be silent: proxies take longer silence for a dead connection
RENEWED = FORM_TIME / 2  # seconds until the script reloads the page, which renews its cookie
PROXIED = 60.0  # the same behind a proxy that signs people in: only that knows who has signed out
PING = b": ping\n\n"

log = logging.getLogger("toolgate.http")


class HomeEvents:
    """The ASGI application behind `/events`."""

    def __init__(self, home: HomePage, recheck: float = RECHECK) -> None:
        self._home = home
        self._recheck = recheck
        self._open: Counter[str] = Counter()  # streams of each principal
        self._caches: dict[str, HomeCache] = {}  # by principal
        self._server_cache = ServerCache(home)
        self._tasks: set[asyncio.Task[None]] = set()
        self._is_ending = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["method"] != "GET":
            await refuse(send, 405, "the method must be GET", [(b"allow", b"GET")])
            return
        request = Request(scope)
        if request.headers.get("sec-fetch-site", "same-origin") != "same-origin":
            await refuse(send, 403, "only this server's first page may read this")
            return
        try:
            visitor = await self._identify(request)
        except (BadFormError, StateError) as error:
            await refuse(send, error.status if isinstance(error, BadFormError) else 503, str(error))
            return
        if visitor is None:
            await refuse(send, 401, "sign in first")
            return
        if self._is_ending:
            await refuse(send, 503, "the server is shutting down", [(b"connection", b"close"), (b"retry-after", b"1")])
            return
        await self._serve(request, visitor, receive, send)

    async def _identify(self, request: Request) -> Visitor | None:
        """Return the visitor, or None for a stranger. Without a database, return the recent visitor of the session: the
        page must say what is away. Raises BadFormError, and StateError for a session without one."""
        try:
            return await self._home.identify_visitor(request)
        except StateError:
            if (visitor := self._home.recall_visitor(request)) is None:
                raise
            return visitor

    async def _serve(self, request: Request, visitor: Visitor, receive: Receive, send: Send) -> None:
        principal = principal_of(visitor)
        if self._open[principal] >= MAX_EACH or self._open.total() >= MAX_ALL:
            await refuse(send, 429, "too many pages are open: close one and try again", [(b"retry-after", b"30")])
            return
        self._open[principal] += 1
        cache = self._caches.setdefault(principal, HomeCache(self._home, visitor))
        try:
            page = HomeEventStream(self._home, request, visitor, cache, self._server_cache, self._recheck)
            await self._stream(page, receive, send)
        finally:
            self._open[principal] -= 1
            if not self._open[principal]:
                del self._open[principal], self._caches[principal]

    def end(self) -> None:
        """End all streams, and refuse new ones."""
        self._is_ending = True
        for task in self._tasks:
            task.cancel()

    async def _stream(self, page: "HomeEventStream", receive: Receive, send: Send) -> None:
        """Send events until the page is closed, or its visitor loses access."""

        async def write() -> None:
            cookies = [(name.encode(), value.encode()) for name, value in page.cookies]
            await send({"type": "http.response.start", "status": 200, "headers": [*HEADERS, *cookies]})
            await send({"type": "http.response.body", "body": OPEN, "more_body": True})
            async for data in page.events():
                await send({"type": "http.response.body", "body": data, "more_body": True})

        writing = asyncio.get_running_loop().create_task(write())
        watching = asyncio.get_running_loop().create_task(_wait_for_disconnect(receive))
        self._tasks.add(writing)
        try:
            await asyncio.wait((writing, watching), return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in (writing, watching):
                task.cancel()
            await asyncio.wait((writing, watching))
            self._tasks.discard(writing)
            page.close()
        if not writing.cancelled() and (error := writing.exception()) is not None:
            log.error("the events of a page have failed", exc_info=error)
        if not watching.done() or watching.cancelled():
            await send({"type": "http.response.body", "body": b"", "more_body": False})


class ServerCache:
    """The parts about this server, which are the same on all open pages, rendered once for all of them."""

    def __init__(self, home: HomePage) -> None:
        self._home = home
        self._parts: dict[str, str] = {}
        self._updated_at = float("-inf")  # in seconds of the monotonic clock

    def read(self) -> dict[str, str]:
        """Return each part's HTML by its name, at most HEALTH_AGE old."""
        if time.monotonic() - self._updated_at >= HEALTH_AGE:
            values, pages = self._home.server_values(), self._home.context.pages
            self._parts = {name: pages.render_part("home_parts", name, values) for name in SERVER_PARTS}
            self._updated_at = time.monotonic()
        return self._parts


class HomeCache:
    """The parts that all open pages of one person show, rendered once for all of them.

    They are rendered on the shared event loop, so a costly update is followed by a long pause in any case. `parts` (by
    name) and `followed` (ids of running commands) are empty before the first update.
    """

    def __init__(self, home: HomePage, visitor: Visitor) -> None:
        self.parts: dict[str, str] = {}
        self.followed: list[int] = []
        self._home = home
        self._visitor = visitor
        self._csrf_mark = secrets.token_hex(32)  # stands for each page's own token, and can't occur in a text
        self._updated_at = 0.0  # in seconds of the monotonic clock
        self._due = 0.0  # the next update, at the earliest
        self._lock = asyncio.Lock()

    def with_csrf(self, html: str, csrf: str) -> str:
        """Return a part for the page that has this token."""
        return html.replace(self._csrf_mark, csrf)

    async def refresh(self, moment: float) -> float:
        """Update the parts if they are older than `moment`. Return 0.0, or the time of the next update if it is too
        early. Raises StateError."""
        async with self._lock:
            if self._updated_at >= moment:
                return 0.0
            begun = time.monotonic()
            if begun < self._due:
                return self._due
            try:
                await self._update()
                self._updated_at = begun
            finally:
                self._due = time.monotonic() + min(REST * (time.monotonic() - begun), LONGEST_REST)
        return 0.0

    async def _update(self) -> None:
        values = await self._home.part_values(self._visitor, self._csrf_mark, is_live=True)
        parts: dict[str, str] = {}
        for name in self._home.list_parts():
            parts[name] = self._home.render_part(name, values)
            await asyncio.sleep(0)  # let other tasks run between two parts
        self.parts = parts
        self.followed = [shown.run.id for shown in values["going"].runs if shown.is_followed]


class HomeEventStream:
    """The events of one open page."""

    def __init__(
        self,
        home: HomePage,
        request: Request,
        visitor: Visitor,
        cache: HomeCache,
        server_cache: ServerCache,
        recheck: float,
    ) -> None:
        self._home = home
        self._request = request
        self._visitor = visitor
        self._cache = cache
        self._server_cache = server_cache
        self._recheck = recheck
        self._principal = principal_of(visitor)
        self._csrf, self.cookies = home.context.csrf_token(request, visitor, *PAGE)
        self._news = asyncio.Event()
        self._next_update = 0.0  # at the latest, in seconds of the monotonic clock
        self._changed_at = time.monotonic()  # the cache must be newer than that
        self._sent: dict[str, str] = {}  # a part's name → its HTML
        self._followed: dict[int, asyncio.Task[None]] = {}  # background tasks, while they run
        self._output: dict[int, dict[str, Any]] = {}  # not sent yet
        self._update: asyncio.Task[list[bytes] | None] | None = None  # under way
        watch = home.watch(self._principal, self._mark_changed)
        self._watching = asyncio.get_running_loop().create_task(watch)

    def close(self) -> None:
        updates = [self._update] if self._update is not None else []
        for task in (self._watching, *self._followed.values(), *updates):
            task.cancel()

    async def events(self) -> AsyncIterator[bytes]:
        begun = silent_since = time.monotonic()
        is_proxied = self._visitor.person is not None and not self._visitor.key
        while time.monotonic() - begun < (PROXIED if is_proxied else RENEWED):
            data = await self._next_events()
            if data is None:
                yield _event("bye", {})
                return
            if data or time.monotonic() - silent_since > PULSE:
                silent_since = time.monotonic()
                yield data or PING
            await asyncio.sleep(PACE)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(max(0, self._next_update - time.monotonic())):
                    await self._news.wait()
            self._news.clear()

    def _mark_changed(self) -> None:
        self._next_update = 0.0
        self._changed_at = time.monotonic()
        self._news.set()

    async def _next_events(self) -> bytes | None:
        """Return the events to send now, or None if the visitor has lost access. While the database can't say so,
        return only those of the parts about this server."""
        if self._update is None and time.monotonic() >= self._next_update:
            self._next_update = time.monotonic() + self._recheck
            self._update = asyncio.get_running_loop().create_task(self._look())
        events = self._take_changes(self._server_cache.read())
        if self._update is not None:
            await asyncio.wait([self._update], timeout=UPDATE_WAIT)
            if not self._update.done():
                self._update.add_done_callback(lambda _: self._news.set())
                return b"".join(events)
            update, self._update = self._update.result(), None
            if update is None:
                return None
            events += update
        events += [_event("output", {"id": id, **piece}) for id, piece in self._output.items()]
        self._output = {}
        return b"".join(events)

    async def _look(self) -> list[bytes] | None:
        """Return the events of changed parts, or None if the visitor has lost access."""
        try:
            if await self._home.identify_visitor(self._request) != self._visitor:
                return None
            return await self._changed_parts()
        except BadFormError:
            return None
        except StateError as error:
            log.warning("the first page can't be updated now: %s", error)
        except Exception:  # a fault of one part must not end the stream, which says what is away
            log.exception("the first page can't be updated")
        return []

    async def _changed_parts(self) -> list[bytes]:
        """Return the events of changed parts, and follow newly running commands."""
        due = await self._cache.refresh(max(self._changed_at, time.monotonic() - self._recheck / 2))
        if due:
            self._next_update = min(self._next_update, due)
        events = self._take_changes(self._cache.parts)
        for id in self._cache.followed:
            if id not in self._followed:
                self._followed[id] = asyncio.get_running_loop().create_task(self._follow(id))
        return events

    def _take_changes(self, parts: Mapping[str, str]) -> list[bytes]:
        """Return the events of the parts that this page does not have yet."""
        changed = {name: html for name, html in parts.items() if self._sent.get(name) != html}
        self._sent |= changed
        own = {name: self._cache.with_csrf(html, self._csrf) for name, html in changed.items()}
        return [_event("part", {"name": name, "html": html}) for name, html in own.items()]

    async def _follow(self, id: int) -> None:
        is_first = True
        try:
            async for text in self._home.dashboard.output(self._principal, id):
                piece = self._output.setdefault(id, {"text": ""})
                piece["text"] = (piece["text"] + text)[-CHUNK:]
                if is_first:
                    piece["first"] = True
                    is_first = False
                self._news.set()
        except OSError as error:
            log.warning("the output of a background task can't be shown: %s", error)
        self._mark_changed()


async def _wait_for_disconnect(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


def _event(name: str, data: dict[str, Any]) -> bytes:
    """Return an event; its JSON has no line breaks."""
    return f"event: {name}\ndata: {json.dumps(data)}\n\n".encode()

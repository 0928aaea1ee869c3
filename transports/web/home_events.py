"""What changes on an open page of somebody who has signed in: a stream of events, for the page's own script. Raw ASGI.

    part    {"name", "html"}: a part of the page anew, made by the page's own template
    output  {"id", "text", "first"?}: output of a background task; with `first` it takes the place of what was there
    bye     {}: whoever looked may not look any more

A stream lives no longer than what it was opened with: every few seconds it is asked anew who looks. Nothing waits here
for a slow reader but its own stream, and of output no more than a piece.
"""

import asyncio
import contextlib
import json
import logging
import time
from collections import Counter
from collections.abc import AsyncIterator
from typing import Any

from starlette.requests import Request

from toolgate.server.dashboard import CHUNK
from toolgate.server.state.store import StateError
from toolgate.transports.http.asgi import Receive, Scope, Send, refuse
from toolgate.transports.http.stream_response import HEADERS, OPEN
from toolgate.transports.web.home import PAGE, HomePage, principal_of
from toolgate.transports.web.home_cache import HomeCache
from toolgate.transports.web.http import BadFormError
from toolgate.transports.web.page_context import FORM_TIME, Visitor

MAX_EACH = 8  # pages of one person that are live at once; one more is not
MAX_ALL = 512
RECHECK = 3.0  # seconds after which it is asked again who looks, and what has changed that nobody tells of
PACE = 0.4  # seconds between two looks: what comes meanwhile is told at once, and a flood of calls costs no more
PULSE = 15.0  # seconds a stream may be silent: longer looks dead to a proxy
RENEWED = FORM_TIME / 2  # seconds after which the page comes anew, by itself: its cookie is renewed with that
PROXIED = 60.0  # the same where a proxy says who it is: it alone knows who has signed out, and is asked at each coming
PING = b": ping\n\n"

log = logging.getLogger("toolgate.http")


class HomeEvents:
    """The ASGI application behind `/events`."""

    def __init__(self, home: HomePage, recheck: float = RECHECK) -> None:
        self._home = home
        self._look = recheck
        self._open: Counter[str] = Counter()  # principals
        self._looks: dict[str, HomeCache] = {}  # by these
        self._tasks: set[asyncio.Task[None]] = set()
        self._is_ending = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["method"] != "GET":
            await refuse(send, 405, "GET", [(b"allow", b"GET")])
            return
        request = Request({**scope, "headers": [*scope["toolgate.headers"].items()]})
        if request.headers.get("sec-fetch-site", "same-origin") != "same-origin":
            await refuse(send, 403, "this is for the first page alone")
            return
        try:
            visitor = await self._home.identify_visitor(request)
        except (BadFormError, StateError) as error:
            await refuse(send, error.status if isinstance(error, BadFormError) else 503, str(error))
            return
        if visitor is None:
            await refuse(send, 401, "sign in first")
            return
        if self._is_ending:
            await refuse(send, 503, "the server is ending", [(b"connection", b"close"), (b"retry-after", b"1")])
            return
        await self._serve(request, visitor, receive, send)

    async def _serve(self, request: Request, visitor: Visitor, receive: Receive, send: Send) -> None:
        principal = principal_of(visitor)
        if self._open[principal] >= MAX_EACH or self._open.total() >= MAX_ALL:
            await refuse(send, 429, "too many pages are open", [(b"retry-after", b"30")])
            return
        self._open[principal] += 1
        seen = self._looks.setdefault(principal, HomeCache(self._home, visitor))
        try:
            await self._pour(HomeEventStream(self._home, request, visitor, seen, self._look), receive, send)
        finally:
            self._open[principal] -= 1
            if not self._open[principal]:
                del self._open[principal], self._looks[principal]

    def end(self) -> None:
        """The server ends: all streams do, and none begins."""
        self._is_ending = True
        for task in self._tasks:
            task.cancel()

    async def _pour(self, page: "HomeEventStream", receive: Receive, send: Send) -> None:
        """Until the page is closed, or may not be shown any more."""

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
            log.error("a live page broke off", exc_info=error)
        if not watching.done() or watching.cancelled():
            await send({"type": "http.response.body", "body": b"", "more_body": False})


class HomeEventStream:
    """One open page: what it has been told already."""

    def __init__(self, home: HomePage, request: Request, visitor: Visitor, seen: HomeCache, look: float) -> None:
        self._home = home
        self._request = request
        self._visitor = visitor
        self._seen = seen
        self._look = look
        self._principal = principal_of(visitor)
        self._csrf, self.cookies = home.context.csrf_token(request, visitor, *PAGE)
        self._news = asyncio.Event()
        self._look_at = 0.0  # when to look again whatever is told, in seconds of the monotonic clock
        self._changed_at = time.monotonic()  # what was seen before that is not shown
        self._told: dict[str, str] = {}  # a part's name → its HTML
        self._followed: dict[int, asyncio.Task[None]] = {}  # background tasks, while they run
        self._output: dict[int, dict[str, Any]] = {}  # what is not told yet
        following = home.data.follow(self._principal, self._mark_changed)
        self._following = asyncio.get_running_loop().create_task(following)

    def close(self) -> None:
        for task in (self._following, *self._followed.values()):
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
                async with asyncio.timeout(max(0, self._look_at - time.monotonic())):
                    await self._news.wait()
            self._news.clear()

    def _mark_changed(self) -> None:
        self._look_at = 0.0
        self._changed_at = time.monotonic()
        self._news.set()

    async def _next_events(self) -> bytes | None:
        """The events there are to tell; None when there will be no more."""
        events = [_event("output", {"id": id, **told}) for id, told in self._output.items()]
        self._output = {}
        if time.monotonic() >= self._look_at:
            self._look_at = time.monotonic() + self._look
            try:
                if await self._home.identify_visitor(self._request) != self._visitor:
                    return None
                events[:0] = await self._changed_parts()
            except BadFormError:
                return None
            except StateError as error:
                log.warning("what goes on can't be told on a page now: %s", error)
        return b"".join(events)

    async def _changed_parts(self) -> list[bytes]:
        """The parts that have changed; and what has begun to run is followed from now on."""
        due = await self._seen.refresh(max(self._changed_at, time.monotonic() - self._look / 2))
        if due:
            self._look_at = min(self._look_at, due)
        changed = {name: html for name, html in self._seen.parts.items() if self._told.get(name) != html}
        self._told |= changed
        for id in self._seen.running:
            if id not in self._followed:
                self._followed[id] = asyncio.get_running_loop().create_task(self._follow(id))
        bound = {name: self._seen.with_csrf(html, self._csrf) for name, html in changed.items()}
        return [_event("part", {"name": name, "html": html}) for name, html in bound.items()]

    async def _follow(self, id: int) -> None:
        is_first = True
        try:
            async for text in self._home.data.dashboard.output(self._principal, id):
                told = self._output.setdefault(id, {"text": ""})
                told["text"] = (told["text"] + text)[-CHUNK:]
                if is_first:
                    told["first"] = True
                    is_first = False
                self._news.set()
        except OSError as error:
            log.warning("the output of a background task can't be shown: %s", error)
        self._mark_changed()


async def _wait_for_disconnect(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


def _event(name: str, data: dict[str, Any]) -> bytes:
    """JSON has no line breaks of its own."""
    return f"event: {name}\ndata: {json.dumps(data)}\n\n".encode()

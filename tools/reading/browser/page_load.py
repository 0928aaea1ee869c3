"""Load one page in a browser context and read its content."""

import asyncio
import contextlib
import html
import re
from collections.abc import AsyncGenerator, Coroutine
from typing import Any, TypeVar
from urllib.parse import urlsplit

import msgspec
from playwright.async_api import BrowserContext, CDPSession, Error, Page, Request, Response
from playwright.async_api import TimeoutError as GotoTimeoutError

from toolgate.tools.api.errors import ToolError
from toolgate.tools.api.outbound.errors import (
    BROKE_OFF,
    AddressRefusedError,
    PageTimeoutError,
    PageUnreachableError,
    shorten_url,
)
from toolgate.tools.reading.browser.javascript import FRAME, LOADED, READ, SETTLE, fill_script
from toolgate.tools.reading.browser.proxy import Ticket

T = TypeVar("T")

PAGE_TIME = 30.0  # seconds to load a page and to let it settle
READ_TIME = 4.0  # seconds kept for reading it at the end
SOURCE_TIME = 1.0  # seconds for its source
END_WITHIN = 2_000  # bytes at the end of a source that are searched for its end tag
QUIET, MOST_QUIET = 500, 5_000  # ms without a change of the DOM; the most ms to wait for that
REDIRECTS = 10
LAST = 5.0  # seconds for the last page of an endless redirect
STILL = 3  # checks, a tenth of a second apart, that find the page complete
MAX_HOPS = 20  # pages that scripts navigate to, one after the other
MAX_HTML = 8 * 2**20  # characters: also the limit of the plain fetch (tools/api/outbound/fetch.py)
MAX_FRAMES = 20
LITTLE = 200  # characters: a page that shows less may have its content in frames
TLS = ("CERT", "SSL")
HTML = frozenset({"text/html", "application/xhtml+xml"})
# Errors without a page: HTTP 204, an error status without a body, and a password prompt
UNSHOWN = frozenset({"ABORTED", "HTTP_RESPONSE_CODE_FAILURE", "INVALID_AUTH_CREDENTIALS"})
END_SCRIPTS: dict[str, dict[str, Any]] = {
    "Runtime.terminateExecution": {},
    "Emulation.setScriptExecutionDisabled": {"value": True},
}
STOP_LOADING: dict[str, dict[str, Any]] = {"Page.stopLoading": {}}
NET = re.compile(r"net::ERR_([A-Z0-9_]+)")


class BrowserGoneError(ToolError):
    """The browser, or the page's renderer, ended."""


class RenderedPage(msgspec.Struct, frozen=True):
    """A page as the browser rendered it. `html` is None for another type, named by `kind` if known. `notes` tell the
    reader about problems of the load. `retry_after` is the header of that name. `lacks_end`: its
    data may be cut."""

    url: str
    kind: str
    status: int = 0
    html: str | None = None
    truncated: bool = False
    notes: tuple[str, ...] = ()
    retry_after: str = ""
    lacks_end: bool = False


class PageLoad(msgspec.Struct):
    """One page in one context. `until`, by the loop's clock, is when reading must end; `wait` is in seconds."""

    context: BrowserContext
    ticket: Ticket
    url: str
    wait: float
    until: float
    is_source: bool
    notes: list[str] = msgspec.field(default_factory=list)
    broke_off: asyncio.Event = msgspec.field(default_factory=asyncio.Event)
    response: Response | None = None

    async def read(self) -> RenderedPage:
        """Return the page. Raises AddressRefusedError, PageUnreachableError, PageTimeoutError and BrowserGoneError."""
        try:
            page = await self.context.new_page()
            self.context.on("page", _close)
            return await self._read_until_crash(page)
        except Error as error:
            raise self._gone_error(str(error)) from None

    async def _read_until_crash(self, page: Page) -> RenderedPage:
        gone = asyncio.Event()
        page.on("crash", lambda _: gone.set())
        page.on("close", lambda _: gone.set())
        async with _race(self._read(page), gone.wait()) as work:
            if work.done():
                return work.result()
            raise self._gone_error("" if page.is_closed() else "crashed")

    async def _read(self, page: Page) -> RenderedPage:
        session = await self.context.new_cdp_session(page)
        page.on("requestfailed", lambda request: self._note_failure(request))
        start, left = _loop_time(), self.until - READ_TIME - _loop_time()
        stop_at = start + min(PAGE_TIME, max(left - self.wait, left / 2))  # keep time for the wait after the load
        try:
            response = await page.goto(self.url, wait_until="commit", timeout=_time_left(stop_at) * 1000)
        except GotoTimeoutError:
            raise self._late_error(stop_at - start) from None
        except Error as error:
            return await self._handle_failed_load(error, page)
        self._check_redirects(response)
        self.response = response
        await self._settle(session, stop_at)
        try:
            async with asyncio.timeout(READ_TIME):
                return await self._read_document(page, session)
        except TimeoutError:
            raise PageTimeoutError(f"{shorten_url(self.url)} keeps the browser too busy to be read") from None

    async def _settle(self, session: CDPSession, stop_at: float) -> None:
        """Wait until the page is loaded and quiet, then the caller's extra time."""
        try:
            for hop in range(MAX_HOPS):
                async with asyncio.timeout(_time_left(stop_at)):
                    is_loaded = await self._is_loaded(session)
                if is_loaded and await self._is_quiet(session, stop_at, is_first=hop == 0):
                    break
            else:
                await _wait_for_last_page(session)
                self.notes.append("it redirects to other pages without end: read as it was")
        except TimeoutError:
            self.notes.append("it had not finished loading: read as it was")
        await self._wait_longer()
        if _loop_time() >= stop_at:
            await _stop(session)

    async def _is_loaded(self, session: CDPSession) -> bool:
        """Wait until the page is loaded as far as it will be; False if it went on to another page. A script decides
        that: Playwright keeps waiting for a navigation that never arrives."""
        loading = _evaluate(session, await _main_frame(session), LOADED)
        async with _race(loading, self.broke_off.wait()) as loaded:
            if loaded.done():
                return loaded.result() is not None
            if BROKE_OFF not in self.notes:
                self.notes.append(BROKE_OFF)
            return True

    def _note_failure(self, request: Request) -> None:
        """Note a page whose body broke off: Chromium itself would wait for ever."""
        with contextlib.suppress(Error):  # it has no frame any more
            is_page = request.is_navigation_request() and request.frame.parent_frame is None
            if is_page and "ABORTED" not in (request.failure or ""):
                self.broke_off.set()

    async def _is_quiet(self, session: CDPSession, stop_at: float, *, is_first: bool) -> bool:
        """Wait until the DOM is quiet, at most MOST_QUIET; False if the page went on to another."""
        left = min(MOST_QUIET / 1000, _time_left(stop_at))
        settle = fill_script(SETTLE, SCROLL=is_first, QUIET=QUIET, MOST=int(left * 1000))
        try:
            async with asyncio.timeout(left + 0.5):
                return await _evaluate(session, await _main_frame(session), settle) is not None
        except TimeoutError:
            await _stop(session)  # the page's scripts keep ours from running
            self.notes.append("its scripts did not finish and were stopped")
            return True

    async def _wait_longer(self) -> None:
        wait = max(0.0, min(self.wait, self.until - READ_TIME - _loop_time()))
        if wait < self.wait - 1:
            self.notes.append(f"waited only {wait:.0f} s: no time was left")
        await asyncio.sleep(wait)

    async def _read_document(self, page: Page, session: CDPSession) -> RenderedPage:
        for _ in range(3):  # a redirect may replace the page during the read
            frame = (await session.send("Page.getFrameTree"))["frameTree"]["frame"]
            self._check_arrival(frame)
            kind = frame.get("mimeType", "")
            if kind not in HTML:
                return RenderedPage(frame["url"], kind)
            values = await _evaluate(session, frame["id"], fill_script(READ, FLAT=not self.is_source, LIMIT=MAX_HTML))
            if values is not None:
                break
        else:
            raise PageUnreachableError(f"{shorten_url(self.url)} redirects to other pages without end")
        status, size, letters, title, length, markup = values
        if letters < LITTLE and not self.is_source:
            markup = await self._with_frames(page, session, title, markup)
        self._note_limits()
        url = frame["url"] + frame.get("urlFragment", "")
        is_cut = length > MAX_HTML or BROKE_OFF in self.notes
        lacks_end = not self.notes and size <= MAX_HTML and await self._lacks_end(frame["url"])
        notes = tuple(self.notes)
        return RenderedPage(url, kind, int(status) or 200, markup, is_cut, notes, self._retry_after(), lacks_end)

    def _retry_after(self) -> str:
        return "" if self.response is None else self.response.headers.get("retry-after", "")

    async def _lacks_end(self, url: str) -> bool:
        """Return whether the source of a compressed page has no end tag: Chromium does not say if its data is cut."""
        response = self.response
        if response is None or response.url.partition("#")[0] != url or "content-encoding" not in response.headers:
            return False
        try:
            async with asyncio.timeout(SOURCE_TIME):
                source = await response.body()
        except (Error, TimeoutError):
            return False
        return b"</html" not in source[-END_WITHIN:].lower()

    async def _with_frames(self, page: Page, session: CDPSession, title: str, markup: str) -> str:
        """Return the page with the content of its frames appended, if they have any."""
        main = (await session.send("Page.getFrameTree"))["frameTree"]
        parts: list[str] = []
        room = MAX_HTML - len(markup)
        for owner, frame in [*_child_frames(session, main), *await self._isolated_frames(page)][:MAX_FRAMES]:
            part = await _evaluate(owner, frame, fill_script(FRAME, LIMIT=max(0, room)))
            if isinstance(part, str) and part.strip():
                room -= len(part)
                parts.append(f"<section>{part}</section>")
        if not parts:
            return markup
        body = await _evaluate(session, main["frame"]["id"], fill_script(FRAME, LIMIT=MAX_HTML))
        head = f"<title>{html.escape(title)}</title>"
        return f"<!doctype html><html><head>{head}</head><body>{body or ''}{''.join(parts)}</body></html>"

    async def _isolated_frames(self, page: Page) -> list[tuple[CDPSession, str]]:
        """Return the frames of other sites, which have processes of their own."""
        found: list[tuple[CDPSession, str]] = []
        for frame in page.frames[1 : MAX_FRAMES + 1]:
            with contextlib.suppress(Error):  # most are part of their page
                session = await self.context.new_cdp_session(frame)
                tree = (await session.send("Page.getFrameTree"))["frameTree"]
                found += [(session, tree["frame"]["id"]), *_child_frames(session, tree)]
        return found

    def _check_arrival(self, frame: dict[str, Any]) -> None:
        """Raise an error if scripts led to an address that was not reached or is not http(s)."""
        if missed := frame.get("unreachableUrl"):
            raise self._unreachable_error(missed, "the page leads there")
        if not frame["url"].startswith(("http://", "https://")):
            target = shorten_url(frame["url"])
            raise AddressRefusedError(f"{shorten_url(self.url)} leads to {target}; only http and https pages are read")

    def _check_redirects(self, response: Response | None) -> None:
        request = response.request if response is not None else None
        count = 0
        while request is not None and (request := request.redirected_from) is not None:
            count += 1
        if count > REDIRECTS:
            raise PageUnreachableError(f"{shorten_url(self.url)} redirects more than {REDIRECTS} times")

    async def _handle_failed_load(self, error: Exception, page: Page) -> RenderedPage:
        """Return a file's page, of which `goto` has none, or raise the error that explains the failure."""
        if page.is_closed() or "crashed" in str(error):
            raise self._gone_error(str(error))
        found = NET.search(str(error))
        code = found[1] if found else ""
        if not self.ticket.failed and ("Download is starting" in str(error) or code in UNSHOWN):
            return RenderedPage(self.url, "")
        if self.ticket.failed and not code.startswith(TLS):  # before the first page only the page itself is requested
            raise list(self.ticket.failed.values())[-1]
        if self.ticket.limit_reached:
            raise PageUnreachableError(f"{shorten_url(self.url)} exceeds {self.ticket.limit_reached}")
        if code == "TOO_MANY_REDIRECTS":
            raise PageUnreachableError(f"{shorten_url(self.url)} redirects more than {REDIRECTS} times")
        if code in ("UNSAFE_REDIRECT", "UNKNOWN_URL_SCHEME", "DISALLOWED_URL_SCHEME", "INVALID_REDIRECT"):
            raise AddressRefusedError(f"{shorten_url(self.url)} redirects to an address that is neither http nor https")
        raise PageUnreachableError(f"could not fetch {shorten_url(self.url)}: {_describe_net_error(code)}")

    def _unreachable_error(self, url: str, words: str) -> ToolError:
        try:
            parts = urlsplit(url)
            place = (parts.hostname or "", parts.port or {"https": 443}.get(parts.scheme, 80))
        except ValueError:
            place = ("", 0)
        return self.ticket.failed.get(place) or PageUnreachableError(f"could not fetch {shorten_url(url)}: {words}")

    def _gone_error(self, words: str) -> ToolError:
        if "crashed" in words:
            return BrowserGoneError(f"{shorten_url(self.url)} crashed its browser process: it may need too much memory")
        return BrowserGoneError(f"the browser ended while it loaded {shorten_url(self.url)}: try again")

    def _late_error(self, time: float) -> ToolError:
        if time <= 0:
            return PageTimeoutError(f"starting the browser left no time to load {shorten_url(self.url)}: call again")
        return PageTimeoutError(f"{shorten_url(self.url)} sent nothing within {time:.0f} s; try again later")

    def _note_limits(self) -> None:
        refused = self.ticket.refusals
        if refused:
            more = f" (and {len(refused) - 1} more like it)" if len(refused) > 1 else ""
            self.notes.append(f"a part of it was not loaded: {refused[0].text}{more}")
        if self.ticket.limit_reached:
            self.notes.append(f"it was stopped at its limit of {self.ticket.limit_reached}")


@contextlib.asynccontextmanager
async def _race(work: Coroutine[Any, Any, T], end: Coroutine[Any, Any, bool]) -> AsyncGenerator[asyncio.Task[T]]:
    """Yield the task of `work` once it or `end` is done. Both end with the block."""
    tasks = asyncio.ensure_future(work), asyncio.ensure_future(end)
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        yield tasks[0]
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)


async def _close(page: Page) -> None:
    """Close a window that the page opened."""
    with contextlib.suppress(Error):
        await page.close()


async def _main_frame(session: CDPSession) -> str:
    identity: str = (await session.send("Page.getFrameTree"))["frameTree"]["frame"]["id"]
    return identity


def _child_frames(session: CDPSession, tree: dict[str, Any]) -> list[tuple[CDPSession, str]]:
    found: list[tuple[CDPSession, str]] = []
    for child in tree.get("childFrames", ()):
        found += [(session, child["frame"]["id"]), *_child_frames(session, child)]
    return found


async def _evaluate(session: CDPSession, frame: str, expression: str) -> Any:
    """Return a script's value in an isolated world, or None if the page went away meanwhile."""
    try:
        world = await session.send("Page.createIsolatedWorld", {"frameId": frame, "worldName": "toolgate"})
        options = {"contextId": world["executionContextId"], "awaitPromise": True, "returnByValue": True}
        answer = await session.send("Runtime.evaluate", {**options, "expression": expression})
    except Error as error:
        if "crashed" in str(error) or "has been closed" in str(error):  # else the page went on
            raise
        return None
    return answer["result"].get("value")


async def _stop(session: CDPSession) -> None:
    """Stop the page's loading and its scripts, endless ones too."""
    await _try_send(session, END_SCRIPTS)
    await _try_send(session, STOP_LOADING)


async def _wait_for_last_page(session: CDPSession) -> None:
    """Wait for the next page of an endless redirect, with the scripts that would lead on disabled."""
    await _try_send(session, END_SCRIPTS)
    looks = 0
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(LAST):
            while looks < STILL:  # the next page may be loading
                await asyncio.sleep(0.1)
                is_there = await _evaluate(session, await _main_frame(session), "document.readyState === 'complete'")
                looks = looks + 1 if is_there else 0
                if not is_there:  # a page that was just replaced may have refused to end its scripts
                    await _try_send(session, END_SCRIPTS)
    await _try_send(session, STOP_LOADING)


async def _try_send(session: CDPSession, commands: dict[str, dict[str, Any]]) -> None:
    """Send each command, also where the one before has failed."""
    for method, parameters in commands.items():
        with contextlib.suppress(Error, TimeoutError):
            async with asyncio.timeout(1):
                await session.send(method, parameters)


def _describe_net_error(code: str) -> str:
    """Return Chromium's error name as words: CERT_DATE_INVALID becomes "cert date invalid"."""
    words = code.replace("_", " ").lower() or "it could not be shown"
    return f"TLS: {words}" if code.startswith(TLS) else words


def _loop_time() -> float:
    return asyncio.get_running_loop().time()


def _time_left(stop_at: float) -> float:
    return max(0.1, stop_at - _loop_time())

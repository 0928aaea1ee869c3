"""Loads one page and reads it out. Knows Playwright's pages; knows nothing of which browser, and of formats only
whether the page's source is wanted as it is.
"""

import asyncio
import contextlib
import html
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from toolgate.tools.browser.script import FRAME, READ, SETTLE, filled
from toolgate.tools.errors import ToolError
from toolgate.tools.web import Refused, TimedOut, Unreachable, shown

if TYPE_CHECKING:
    from playwright.async_api import BrowserContext, CDPSession, Page, Response

    from toolgate.tools.browser.gateway import Ticket

PAGE_TIME = 30.0  # seconds to load a page and to let it settle
READ_TIME = 4.0  # seconds kept for reading it at the end
QUIET, MOST_QUIET = 500, 5_000  # ms without a change of the DOM; ms that this is waited for
REDIRECTS = 10
MAX_HTML = 8 * 2**20  # characters: what is read of a page without a browser, too (tools/web.py)
MAX_FRAMES = 20
LITTLE = 200  # characters: a page that shows less may have its content in frames
HTML = frozenset({"text/html", "application/xhtml+xml"})
NET = re.compile(r"net::ERR_([A-Z0-9_]+)")


class Broken(ToolError):
    """The browser, or the page's part of it, is gone."""


@dataclass(frozen=True, slots=True)
class Seen:
    """A page as the browser had it. `html` is None when it is none: `kind` is its type then, if that is known.

    `notes` say what its reader should know of how it was had.
    """

    url: str
    kind: str
    status: int = 0
    html: str | None = None
    truncated: bool = False
    notes: tuple[str, ...] = ()


@dataclass(slots=True)
class Visit:
    """One page of one context. `until` is when all must be done, by the loop's clock; `wait` in seconds."""

    context: "BrowserContext"
    ticket: "Ticket"
    url: str
    wait: float
    until: float
    is_source: bool
    notes: list[str] = field(default_factory=list)

    async def read(self) -> Seen:
        """Raises Refused, Unreachable, TimedOut and Broken."""
        from playwright.async_api import Error  # start-up

        try:
            page = await self.context.new_page()
            self.context.on("page", _close)
            return await self._unless_it_crashes(page)
        except Error as error:
            raise self._broken(error) from None

    async def _unless_it_crashes(self, page: "Page") -> Seen:
        crashed = asyncio.Event()
        page.on("crash", lambda _: crashed.set())
        work = asyncio.ensure_future(self._read(page))
        watch = asyncio.ensure_future(crashed.wait())
        try:
            await asyncio.wait((work, watch), return_when=asyncio.FIRST_COMPLETED)
            if work.done():
                return work.result()
            raise Broken(f"{shown(self.url)} broke the browser's process that had it: it may take too much memory")
        finally:
            work.cancel()
            watch.cancel()
            await asyncio.wait((work, watch))

    async def _read(self, page: "Page") -> Seen:
        from playwright.async_api import Error, TimeoutError  # start-up

        session = await self.context.new_cdp_session(page)
        stop_at = min(_now() + PAGE_TIME, self.until - self.wait - READ_TIME)
        try:
            response = await page.goto(self.url, wait_until="commit", timeout=_left(stop_at) * 1000)
        except TimeoutError:
            raise self._late() from None
        except Error as error:
            return await self._not_loaded(error, page)
        await self._check_redirects(response)
        await self._settle(page, session, stop_at)
        return await self._read_out(page, session)

    async def _settle(self, page: "Page", session: "CDPSession", stop_at: float) -> None:
        """Until it is loaded and quiet, and as long as was asked for besides."""
        from playwright.async_api import TimeoutError  # start-up

        try:
            await page.wait_for_load_state("load", timeout=_left(stop_at) * 1000)
            await self._quiet(page, session, stop_at)
        except TimeoutError:
            self.notes.append("it had not finished loading: read as it was")
        wait = min(self.wait, self.until - READ_TIME - _now())
        if wait > 0:
            await asyncio.sleep(wait)
        if _now() >= stop_at:
            await _stop(session)

    async def _quiet(self, page: "Page", session: "CDPSession", stop_at: float) -> None:
        """A page that goes on to another is waited for again."""
        give_up = min(_now() + MOST_QUIET / 1000, stop_at)
        scroll = True
        while (left := give_up - _now()) > 0:
            settle = filled(SETTLE, SCROLL=scroll, QUIET=QUIET, MOST=int(left * 1000))
            try:
                async with asyncio.timeout(left + 0.5):
                    if await _told(session, await _main(session), settle) is not None:
                        return
            except TimeoutError:
                await _stop(session)  # its scripts leave no time for ours
                self.notes.append("its scripts did not come to an end: they were stopped")
                return
            scroll = False
            await page.wait_for_load_state("load", timeout=_left(stop_at) * 1000)

    async def _read_out(self, page: "Page", session: "CDPSession") -> Seen:
        try:
            async with asyncio.timeout(READ_TIME):
                return await self._as_it_is(page, session)
        except TimeoutError:
            raise TimedOut(f"{shown(self.url)} keeps the browser too busy to be read") from None

    async def _as_it_is(self, page: "Page", session: "CDPSession") -> Seen:
        for _ in range(3):  # it may be on its way to another page at this very moment
            frame = (await session.send("Page.getFrameTree"))["frameTree"]["frame"]
            self._check_arrival(frame)
            kind = frame.get("mimeType", "")
            if kind not in HTML:
                return Seen(frame["url"], kind)
            told = await _told(session, frame["id"], filled(READ, FLAT=not self.is_source, LIMIT=MAX_HTML))
            if told is not None:
                break
        else:
            raise Unreachable(f"{shown(self.url)} goes on to other pages without end")
        status, letters, title, length, markup = told
        if letters < LITTLE and not self.is_source:
            markup = await self._with_frames(page, session, title, markup)
        self._tell_limits()
        url = frame["url"] + frame.get("urlFragment", "")
        return Seen(url, kind, int(status) or 200, markup, length > MAX_HTML, tuple(self.notes))

    async def _with_frames(self, page: "Page", session: "CDPSession", title: str, markup: str) -> str:
        """The page with what its frames show below it, where they show anything."""
        main = (await session.send("Page.getFrameTree"))["frameTree"]
        parts: list[str] = []
        room = MAX_HTML - len(markup)
        for owner, frame in [*_below(session, main), *await self._apart(page)][:MAX_FRAMES]:
            part = await _told(owner, frame, filled(FRAME, LIMIT=max(0, room)))
            if isinstance(part, str) and part.strip():
                room -= len(part)
                parts.append(f"<section>{part}</section>")
        if not parts:
            return markup
        body = await _told(session, main["frame"]["id"], filled(FRAME, LIMIT=MAX_HTML))
        head = f"<title>{html.escape(title)}</title>"
        return f"<!doctype html><html><head>{head}</head><body>{body or ''}{''.join(parts)}</body></html>"

    async def _apart(self, page: "Page") -> list[tuple["CDPSession", str]]:
        """The frames that have a process of their own: those of other sites."""
        from playwright.async_api import Error  # start-up

        found: list[tuple[CDPSession, str]] = []
        for frame in page.frames[1 : MAX_FRAMES + 1]:
            with contextlib.suppress(Error):  # most are part of their page
                session = await self.context.new_cdp_session(frame)
                tree = (await session.send("Page.getFrameTree"))["frameTree"]
                found += [(session, tree["frame"]["id"]), *_below(session, tree)]
        return found

    def _check_arrival(self, frame: dict[str, Any]) -> None:
        """Where scripts led it must be a page that was reached."""
        missed = frame.get("unreachableUrl")
        if missed:
            raise self._failure(missed, "the page leads there")
        if not frame["url"].startswith(("http://", "https://")):
            raise Refused(f"{shown(self.url)} leads to {shown(frame['url'])}; only http and https pages are read")

    async def _check_redirects(self, response: "Response | None") -> None:
        request = response.request if response is not None else None
        count = 0
        while request is not None and (request := request.redirected_from) is not None:
            count += 1
        if count > REDIRECTS:
            raise Unreachable(f"{shown(self.url)} redirects more than {REDIRECTS} times")

    async def _not_loaded(self, error: Exception, page: "Page") -> Seen:
        """What `goto` could not show: a file (told as one), or nothing at all."""
        if page.is_closed() or "crashed" in str(error):
            raise self._broken(error)
        found = NET.search(str(error))
        code = found[1] if found else ""
        if not self.ticket.failed and ("Download is starting" in str(error) or code == "ABORTED"):
            return Seen(self.url, "")
        if self.ticket.failed:  # on the way to a page nothing else is asked for
            raise list(self.ticket.failed.values())[-1]
        if self.ticket.spent:
            raise Unreachable(f"{shown(self.url)} is larger than {self.ticket.spent}")
        if code == "TOO_MANY_REDIRECTS":
            raise Unreachable(f"{shown(self.url)} redirects more than {REDIRECTS} times")
        if code in ("UNSAFE_REDIRECT", "UNKNOWN_URL_SCHEME", "DISALLOWED_URL_SCHEME", "INVALID_REDIRECT"):
            raise Refused(f"{shown(self.url)} redirects to what is neither http nor https: only those are read")
        raise Unreachable(f"could not fetch {shown(self.url)}: {_words(code)}")

    def _failure(self, url: str, words: str) -> ToolError:
        try:
            parts = urlsplit(url)
            place = (parts.hostname or "", parts.port or {"https": 443}.get(parts.scheme, 80))
        except ValueError:
            place = ("", 0)
        return self.ticket.failed.get(place) or Unreachable(f"could not fetch {shown(url)}: {words}")

    def _broken(self, error: Exception) -> ToolError:
        if "crashed" in str(error):
            return Broken(f"{shown(self.url)} broke the browser's process that had it: it may take too much memory")
        return Broken(f"the browser ended while it had {shown(self.url)}; the next call starts another: try again")

    def _late(self) -> ToolError:
        return TimedOut(f"{shown(self.url)} did not begin to come in time: {PAGE_TIME:g} s at most")

    def _tell_limits(self) -> None:
        refused = self.ticket.refused
        if refused:
            more = f" (and {len(refused) - 1} more like it)" if len(refused) > 1 else ""
            self.notes.append(f"a part of it was not loaded: {refused[0].text}{more}")
        if self.ticket.spent:
            self.notes.append(f"it was stopped when it had used {self.ticket.spent}")


async def _close(page: "Page") -> None:
    """A window that the page opens is nobody's."""
    from playwright.async_api import Error  # start-up

    with contextlib.suppress(Error):
        await page.close()


async def _main(session: "CDPSession") -> str:
    identity: str = (await session.send("Page.getFrameTree"))["frameTree"]["frame"]["id"]
    return identity


def _below(session: "CDPSession", tree: dict[str, Any]) -> list[tuple["CDPSession", str]]:
    found: list[tuple[CDPSession, str]] = []
    for child in tree.get("childFrames", ()):
        found += [(session, child["frame"]["id"]), *_below(session, child)]
    return found


async def _told(session: "CDPSession", frame: str, expression: str) -> Any:
    """What a script says, in a world of its own; None when the page went while it ran."""
    from playwright.async_api import Error  # start-up

    try:
        world = await session.send("Page.createIsolatedWorld", {"frameId": frame, "worldName": "toolgate"})
        answer = await session.send(
            "Runtime.evaluate",
            {
                "contextId": world["executionContextId"],
                "expression": expression,
                "awaitPromise": True,
                "returnByValue": True,
            },
        )
    except Error as error:
        if "crashed" in str(error) or "has been closed" in str(error):  # not "navigated or closed": it went on
            raise
        return None
    return answer["result"].get("value")


async def _stop(session: "CDPSession") -> None:
    """Its loading, and its scripts: also one that never ends."""
    from playwright.async_api import Error  # start-up

    with contextlib.suppress(Error, TimeoutError):
        async with asyncio.timeout(1):
            await session.send("Runtime.terminateExecution")
            await session.send("Emulation.setScriptExecutionDisabled", {"value": True})
            await session.send("Page.stopLoading")


def _words(code: str) -> str:
    """Chromium's name of a failure as words: CERT_DATE_INVALID is "cert date invalid"."""
    words = code.replace("_", " ").lower() or "it could not be shown"
    return f"TLS: {words}" if code.startswith(("CERT", "SSL")) else words


def _now() -> float:
    return asyncio.get_running_loop().time()


def _left(stop_at: float) -> float:
    return max(0.1, stop_at - _now())

"""Read pages and pictures in this process and its children: a browser if there is one, and workers."""

import asyncio
import hashlib
from typing import TYPE_CHECKING

import msgspec

from toolgate.tools.api.concurrency.fair_queue import BusyError, FairQueue
from toolgate.tools.api.context.services import Page, PageFetcher
from toolgate.tools.api.errors import ToolError
from toolgate.tools.api.outbound.errors import shorten_url
from toolgate.tools.api.outbound.fetch import Web
from toolgate.tools.api.text.cleaning import to_line
from toolgate.tools.reading.pages.conversions import Conversion, Conversions
from toolgate.tools.reading.pages.document import LoadedPage, create_document, create_error_document
from toolgate.tools.reading.pages.page_reader import (
    FAULT,
    Format,
    PageDocument,
    PageRequest,
    PictureRequest,
    create_timeout_error,
)
from toolgate.tools.workspace.workspace import Workspace

if TYPE_CHECKING:
    from toolgate.tools.reading.browser.browser import Browser
    from toolgate.tools.reading.search.engine import Engine
    from toolgate.tools.reading.search.html_engine import ResultReader
    from toolgate.tools.reading.web.convert import RawPage, ReadablePage
    from toolgate.tools.reading.workers.pictures import FittedPicture
    from toolgate.tools.reading.workers.pool import Workers

QUEUE_SHARE = 0.6  # share of a call's hold for waiting; the rest is for the page
PAGE_TIME = 30.0  # seconds to load a page
CUT_TIME = 5.0  # seconds to see whether a page that lacks its end is cut
ACCEPT_HTML = "text/html,application/xhtml+xml,application/json;q=0.9,text/*;q=0.9,application/xml;q=0.8,*/*;q=0.5"
ACCEPT = f"text/markdown,{ACCEPT_HTML}"  # some sites have their pages in both forms
PDF_TYPE = "application/pdf"
MAX_PDF = 32 * 2**20  # bytes; illustrated manuals are larger than any page
MAX_FILE = 64 * 2**20  # bytes of a picture; the largest photographs are about half of it
# Pages read at once, from the first byte to the text: each may hold web.fetch.MAX_BODY, and more as text.
MAX_VISITS = 10
VISITS_SHARE = 6  # of them for one principal
MAX_LARGE = 3  # of them that may be larger than MAX_BODY
LARGE_SHARE = 2
MAX_WAITING = 128  # of one principal's pages: a later one would not be read in time
MAX_WHOLE = 7 * 2**20  # bytes of a text that a worker returns at once: nearly workers.messages.MAX_RESULT
MAX_SINGLE = 75_000  # characters that fit into one answer beside the longest URL and notes
CHANGED_NOTE = "the page has changed while it was read: earlier parts may not fit; without an offset it is loaded again"
NO_BROWSER_NOTE = "fetched without a browser: scripts did not run"


class LocalPageReader:
    """A PageReader whose browser and workers are children of this process.

    A page takes a slot of `visits` before it is fetched, and one of `large` for a file larger than MAX_BODY; this
    bounds memory. `chromium` is the path of a browser, or None. `conversions` keeps texts between the pieces of a page.
    """

    def __init__(self, web: Web, chromium: str | None = None, conversions: Conversions | None = None) -> None:
        self.web = web
        self.conversions = conversions or Conversions()
        self.visits = FairQueue(MAX_VISITS, "pages", per_principal=VISITS_SHARE, max_waiting=MAX_WAITING)
        self.large = FairQueue(MAX_LARGE, "large files", per_principal=LARGE_SHARE)
        self._chromium = chromium
        self._browser: Browser | None = None
        self._workers: Workers | None = None

    async def read(self, request: PageRequest) -> PageDocument:
        kept = self.conversions.find(request) if request.offset else None
        if kept is not None and kept.is_current:
            return _show(kept, request)
        try:
            async with (
                asyncio.timeout_at(request.deadline),
                self.visits.slot(request.principal, request.hold * QUEUE_SHARE),
            ):
                load = _fetch if self.browser is None else _render
                return await _answer(self, await load(self, request), request)
        except TimeoutError:
            raise create_timeout_error(request) from None

    async def fit_picture(self, request: PictureRequest, workspace: Workspace) -> "FittedPicture":
        from toolgate.tools.reading.workers.pictures import FittedPicture, RawPicture  # start-up and memory
        from toolgate.tools.reading.workers.pool import WorkerLimitError

        path = request.path
        try:
            async with self.workers.turn("picture", request.principal, request.patience) as turn:
                with await workspace.open_file(path, MAX_FILE, anywhere=request.anywhere) as file:
                    if not file.size:
                        raise ToolError(f"{path} is empty")
                    return await turn.run(RawPicture(path, request.bytes, request.pixels), FittedPicture, file)
        except WorkerLimitError as error:
            raise ToolError(f"{path} {error} when decoded; make a smaller copy of it") from None

    def get_fetcher(self, principal: str) -> PageFetcher:
        return self.web

    def create_result_reader(self, engine: "Engine") -> "ResultReader":
        from toolgate.tools.reading.search.ddgs_client import DdgsClient  # start-up and memory

        return DdgsClient(engine.name, self.workers, engine.seconds)

    @property
    def workers(self) -> "Workers":
        """The workers of all calls."""
        if self._workers is None:
            from toolgate.tools.reading.workers.pool import Workers  # start-up and memory

            self._workers = Workers()
        return self._workers

    @property
    def browser(self) -> "Browser | None":
        """The one browser of all calls, or None without a `chromium`."""
        if self._browser is None and self._chromium is not None:
            from toolgate.tools.reading.browser.browser import Browser  # start-up

            self._browser = Browser(self._chromium, self.web.allowed, self.web.resolve)
        return self._browser

    def is_browser_up(self) -> bool:
        return self._browser is not None and self._browser.is_up

    def depths(self) -> list[tuple[str, tuple[int, int]]]:
        """Return the running and waiting count of `visits`, of the browser's `pages`, and of the workers' jobs."""
        pages = self._browser.depth if self._browser is not None else (0, 0)
        jobs = self._workers.depths() if self._workers is not None else []
        return [("visits", (self.visits.running, self.visits.waiting)), ("pages", pages), *jobs]

    async def close(self) -> None:
        """End the workers and the browser, and close the idle connections. A later read starts new ones."""
        self.conversions.close()
        browser, self._browser = self._browser, None
        closing = [part.close() for part in (self.web, browser, self._workers) if part is not None]
        for outcome in await asyncio.gather(*closing, return_exceptions=True):
            try:
                if isinstance(outcome, BaseException):
                    raise outcome
            finally:
                del outcome  # its traceback holds this frame


async def _fetch(reader: LocalPageReader, request: PageRequest, *notes: str) -> LoadedPage:  # no scripts, no waiting
    headers = {"accept": ACCEPT_HTML if request.format == "html" else ACCEPT}
    timeout = min(PAGE_TIME, request.seconds_left)
    page = await reader.web.fetch(request.url, headers=headers, timeout=timeout, allow_incomplete=True)
    return LoadedPage(page, rendered=False, notes=notes or (NO_BROWSER_NOTE,))


async def _render(reader: LocalPageReader, request: PageRequest) -> LoadedPage:
    """Return the page as the browser shows it. Types that it has no viewer for are fetched."""
    from toolgate.tools.reading.browser.chromium import BrowserStartError  # start-up

    browser = reader.browser
    assert browser is not None
    url = reader.web.normalise_url(request.url)
    is_source = request.format == "html"
    try:
        seen = await browser.read(url, request.principal, request.wait, request.seconds_left, is_source=is_source)
    except BrowserStartError as failure:
        return await _fetch(reader, request, f"{NO_BROWSER_NOTE}; the browser did not start: {failure}")
    if seen.html is None:
        return await _fetch(reader, msgspec.structs.replace(request, url=seen.url))
    headers = {"content-type": "text/html; charset=utf-8", "retry-after": seen.retry_after}
    is_cut = seen.lacks_end and await _is_cut(reader, request, seen.url)
    page = Page(seen.url, seen.status, headers, seen.html.encode("utf-8", "replace"), seen.truncated, is_cut)
    notes = seen.notes if browser.sandboxed else (*seen.notes, "the browser runs without its own sandbox")
    return LoadedPage(page, rendered=True, notes=notes)


async def _is_cut(reader: LocalPageReader, request: PageRequest, url: str) -> bool:
    """Return whether the data of a page breaks off, by fetching it: the browser reads cut data without a word."""
    timeout = min(CUT_TIME, request.seconds_left)
    try:
        page = await reader.web.fetch(url, headers={"accept": ACCEPT_HTML}, timeout=timeout, allow_incomplete=True)
    except ToolError:
        return False
    return page.is_incomplete


async def _answer(reader: LocalPageReader, loaded: LoadedPage, request: PageRequest) -> PageDocument:
    from toolgate.tools.reading.web.convert import RawPage  # start-up: first needed by a page

    page = loaded.page
    raw = RawPage(page.body, page.headers.get("content-type", ""), page.url, request.format)
    if not (page.truncated and raw.kind == PDF_TYPE):
        return await _convert(reader, loaded, request)
    loaded = msgspec.structs.replace(loaded, page=msgspec.structs.replace(page, body=b""))
    del page, raw  # no body while it waits
    async with reader.large.slot(request.principal, request.seconds_left * QUEUE_SHARE):
        timeout = min(PAGE_TIME, request.seconds_left)
        headers = {"accept": ACCEPT}
        page = await reader.web.fetch(
            request.url, headers=headers, timeout=timeout, limit=MAX_PDF, allow_incomplete=True
        )
        return await _convert(reader, msgspec.structs.replace(loaded, page=page), request)


async def _convert(reader: LocalPageReader, loaded: LoadedPage, request: PageRequest) -> PageDocument:
    from toolgate.tools.reading.web.convert import RawPage, ReadablePage  # start-up: first needed by a page
    from toolgate.tools.reading.workers.pool import WorkerLimitError

    page = loaded.page
    is_fault = page.status >= FAULT
    digest = await asyncio.to_thread(_digest, page)
    kept = reader.conversions.find(request)
    emptied = msgspec.structs.replace(loaded, page=msgspec.structs.replace(page, body=b""))
    if kept is not None and kept.digest == digest and not is_fault:
        return _show(msgspec.structs.replace(kept, loaded=emptied), request)
    form: Format = "text" if is_fault else request.format
    offset, max_whole = (0, 0) if is_fault else (request.offset, MAX_WHOLE)
    raw = RawPage(page.body, page.headers.get("content-type", ""), page.url, form, offset, max_whole)
    try:
        readable = await _read_in_worker(reader, raw, request)
    except BusyError:
        raise
    except (WorkerLimitError, ToolError) as error:
        if not is_fault:
            if isinstance(error, ToolError):
                raise
            hint = "look for another version of it" if raw.kind == PDF_TYPE else "format html returns its source"
            raise ToolError(f"{shorten_url(page.url)} {error} when converted; {hint}") from None
        readable = ReadablePage(raw.kind, "", "", len(page.body))
    if is_fault:
        return create_error_document(loaded, readable, request.format)
    if readable.text is None:
        kind = to_line(readable.kind, 100)
        raise ToolError(
            f"{shorten_url(page.url)} is {kind}, not text; ReadDocs reads HTML, PDF, JSON, XML and plain text"
        )
    conversion = Conversion(emptied, readable, digest)
    if readable.is_whole and readable.length > MAX_SINGLE:
        conversion = reader.conversions.add(request, conversion)
    return _show(conversion, request)


def _show(conversion: Conversion, request: PageRequest) -> PageDocument:
    """Return the piece of a converted page that is asked for."""
    notes = (CHANGED_NOTE,) if conversion.is_changed and request.offset else ()
    return create_document(conversion.loaded, conversion.readable.cut_piece(request.offset), request, notes)


def _digest(page: Page) -> bytes:
    """Return what two loads of the same page have in common."""
    head = f"{page.url} {page.truncated} {page.headers.get('content-type', '')}\n"
    digest = hashlib.sha256(head.encode("utf-8", "replace"))
    digest.update(page.body)
    return digest.digest()


async def _read_in_worker(reader: LocalPageReader, raw: "RawPage", request: PageRequest) -> "ReadablePage":
    from toolgate.tools.reading.web.convert import ReadablePage, read  # start-up

    if not raw.worker_job:
        return await asyncio.to_thread(read, raw)
    async with reader.workers.turn(raw.worker_job, request.principal, request.seconds_left * QUEUE_SHARE) as turn:
        return await turn.run(msgspec.structs.replace(raw, body=b""), ReadablePage, raw.body)

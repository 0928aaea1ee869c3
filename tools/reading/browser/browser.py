"""Run the server's one warm browser: start it on demand, share it, and replace it before it degrades.

`chromium` starts and ends it; `page_load` loads pages in it.
"""

import asyncio
import logging
from collections.abc import Coroutine
from contextvars import Context
from typing import TYPE_CHECKING, Any

from toolgate.tools.api.concurrency.fair_queue import FairQueue
from toolgate.tools.api.context.spans import span
from toolgate.tools.api.errors import ToolError
from toolgate.tools.api.outbound.address_policy import AddressPolicy
from toolgate.tools.api.outbound.errors import Resolve
from toolgate.tools.reading.browser.chromium import ABOUT_SANDBOX, END, LAUNCH_MODES, BrowserStartError, Chromium
from toolgate.tools.reading.browser.proxy import BrowserProxy, Ticket

if TYPE_CHECKING:
    from playwright.async_api import BrowserContext

    from toolgate.tools.reading.browser.page_load import RenderedPage

PAGES = 6  # at once: a page takes 50 to 300 MiB, and half a core while it loads
SHARE = 4  # of them for one principal, each for a call's whole hold: others have two left
AGAIN = 30.0  # seconds before a failed start is tried again: a try may cost a call START seconds
QUEUE = 30.0  # seconds that a call waits for its turn; the rest of its hold is for the page
WORN_PAGES = 500  # pages after which leaks show
MEMORY = 1_536 * 2**20  # bytes of all its processes; above, it is replaced once its pages are done
PAGE_MEMORY = 768 * 2**20  # bytes of one page's process
MOST_MEMORY = 3 * 2**30  # bytes of all its processes; above, the largest page is ended
LOOK = 0.25  # seconds between checks of the memory while there are pages
IDLE = 300.0  # seconds without a page before it ends
CLOSE = 3.0  # seconds for a page to close; a stuck one costs its browser

log = logging.getLogger(__name__)


class BrowserLostError(ToolError):
    """The browser ended for a reason that is not this page's: another browser may read it."""


class RunningBrowser:
    """One Chromium and its page count. `is_retired`: it gets no more pages, and ends with its last one."""

    def __init__(self, chromium: Chromium) -> None:
        self.chromium = chromium
        self.pages = 0
        self.count = 0
        self.is_retired = False
        self.is_lost = False  # ended because of one page: the others may be read again
        self.watch: asyncio.Task[None] | None = None

    @property
    def is_good(self) -> bool:
        return not self.is_retired and self.chromium.is_alive


class Browser:
    """The server's browser. `program` is Chromium's path. The first page starts it; `close` ends everything."""

    def __init__(
        self, program: str, allowed: AddressPolicy, resolve: Resolve | None = None, *, idle: float = IDLE
    ) -> None:
        self.program = program
        self.proxy = BrowserProxy(allowed, resolve)
        self.sandboxed: bool | None = None  # None: not known before the first start
        self._idle = idle
        self._mode = 0  # index of the first of LAUNCH_MODES that works here
        self._queue = FairQueue(PAGES, "pages", per_principal=SHARE)
        self._starting = asyncio.Lock()
        self._failure: tuple[float, BrowserStartError] | None = None  # loop time, and the error
        self._current: RunningBrowser | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    async def read(self, url: str, principal: str, wait: float, hold: float, *, is_source: bool) -> "RenderedPage":
        """Return the page at `url`, loaded in its own context. It waits `wait` seconds after the page is quiet, within
        `hold` seconds in all. Raises BrowserStartError, BusyError and what PageLoad raises."""
        until = asyncio.get_running_loop().time() + hold
        try:
            return await self._read(url, principal, wait, until, is_source)
        except BrowserLostError:
            return await self._read(url, principal, wait, until, is_source)

    async def _read(self, url: str, principal: str, wait: float, until: float, is_source: bool) -> "RenderedPage":
        hold = until - asyncio.get_running_loop().time()
        await self._queue.acquire(principal, min(QUEUE, hold * 0.7))
        try:
            running = await self._get_running()
            running.pages += 1
            running.count += 1
        except BaseException:
            self._queue.release(principal)
            raise
        with self.proxy.issue_ticket() as ticket, span("load page"):
            try:
                return await self._load_page(running, ticket, principal, url, wait, until, is_source)
            finally:
                self._stop_later()

    async def _load_page(
        self,
        running: RunningBrowser,
        ticket: Ticket,
        principal: str,
        url: str,
        wait: float,
        until: float,
        is_source: bool,
    ) -> "RenderedPage":
        from playwright.async_api import Error  # start-up

        from toolgate.tools.reading.browser.page_load import BrowserGoneError, PageLoad

        context: BrowserContext | None = None
        try:
            context = await running.chromium.context(ticket)
            return await PageLoad(context, ticket, url, wait, until, is_source).read()
        except (Error, BrowserGoneError) as error:
            running.is_retired = running.is_retired or context is None  # it is ending, though no event says so yet
            if running.is_lost or context is None:
                raise BrowserLostError("the browser ended: try again") from None
            if isinstance(error, BrowserGoneError):
                raise
            raise BrowserGoneError("the browser ended: try again") from None
        finally:
            self._in_background(self._leave(running, context, principal))

    @property
    def is_up(self) -> bool:
        return self._current is not None and self._current.chromium.is_alive

    @property
    def depth(self) -> tuple[int, int]:
        """The number of open pages and of waiting calls."""
        return self._queue.running, self._queue.waiting

    async def try_start(self) -> bool:
        """Start the browser, and return whether its own sandbox is on. Raises BrowserStartError."""
        return (await self._get_running()).chromium.is_sandboxed

    async def close(self) -> None:
        """End the browser and the proxy, and wait until they are gone."""
        if self._timer is not None:
            self._timer.cancel()
        running, self._current = self._current, None
        if running is not None:
            await self._end(running)
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=2 * END)
        await self.proxy.close()

    async def _get_running(self) -> RunningBrowser:
        """Return the browser that takes the next page."""
        if self._timer is not None:
            self._timer.cancel()
        async with self._starting:
            if self._current is not None and not self._current.is_good:
                self._retire(self._current)
            if self._current is None:
                await self.proxy.open()
                self._current = RunningBrowser(await self._start_unless_failed())
                watching = self._watch(self._current)  # outside the context of the call that starts it
                self._current.watch = asyncio.get_running_loop().create_task(watching, context=Context())
            return self._current

    async def _start_unless_failed(self) -> Chromium:
        """Start the browser, unless a start failed less than AGAIN seconds ago."""
        now = asyncio.get_running_loop().time()
        if self._failure is not None and now - self._failure[0] < AGAIN:
            raise self._failure[1]
        try:
            return await self._start_chromium()
        except BrowserStartError as failure:
            self._failure = (now, failure)
            log.warning("the browser did not start: %s", failure)
            raise

    async def _start_chromium(self) -> Chromium:
        """Start Chromium, with its own sandbox if that works."""
        while True:
            way = LAUNCH_MODES[self._mode]
            try:
                chromium = await Chromium.start(self.program, self.proxy.port, way)
            except BrowserStartError as failure:
                if not ABOUT_SANDBOX.search(str(failure)) or self._mode + 1 == len(LAUNCH_MODES):
                    raise
                self._mode += 1
                log.warning("Chromium does not start with its own sandbox: %s", failure)
                continue
            self.sandboxed = way.sandbox
            if not way.sandbox:
                log.warning("Chromium runs WITHOUT its own sandbox: this machine does not allow it")
            return chromium

    def _retire(self, running: RunningBrowser) -> None:
        """Give the browser no more pages."""
        running.is_retired = True
        if self._current is running:
            self._current = None
        if running.pages == 0 or not running.chromium.is_alive:
            self._in_background(self._end(running))

    async def _leave(self, running: RunningBrowser, context: "BrowserContext | None", principal: str) -> None:
        """Close the page before the next call gets its turn."""
        try:
            if context is not None and running.chromium.is_alive:
                async with asyncio.timeout(CLOSE):
                    await context.close()
        except TimeoutError:
            log.warning("a page does not close: ending its browser")
            running.is_lost = True
            await self._give_up(running)
        except Exception:  # the browser ended meanwhile; Playwright reports that in many ways
            log.debug("closing a page", exc_info=True)
        finally:
            running.pages -= 1
            self._queue.release(principal)
            memory = running.chromium.memory() if running.count % 8 == 0 else {}  # not after each page: it reads /proc
            if running.count >= WORN_PAGES or not running.is_good or sum(memory.values()) > MEMORY:
                self._retire(running)

    async def _end(self, running: RunningBrowser) -> None:
        if running.watch is not None:
            running.watch.cancel()
        await running.chromium.close()

    async def _watch(self, running: RunningBrowser) -> None:
        """End a page that takes too much memory before the machine runs out."""
        while True:
            await asyncio.sleep(LOOK)
            if not running.pages:
                continue
            held = running.chromium.memory()
            if not held:
                continue
            largest = max(held, key=held.__getitem__)
            if held[largest] <= PAGE_MEMORY and sum(held.values()) <= MOST_MEMORY:
                continue
            size = held[largest] // 2**20
            if running.chromium.end_pages(largest):
                log.warning("a page took %d MiB of memory: ending it", size)
                continue
            log.warning("the browser itself took %d MiB of memory for page storage: ending it", size)
            self._in_background(self._give_up(running))
            return

    async def _give_up(self, running: RunningBrowser) -> None:
        """End the browser with all its pages."""
        running.is_retired = True
        await running.chromium.close()

    def _stop_later(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = asyncio.get_running_loop().call_later(self._idle, self._stop_if_idle)

    def _stop_if_idle(self) -> None:
        running = self._current
        if running is not None and running.pages == 0:
            self._retire(running)

    def _in_background(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

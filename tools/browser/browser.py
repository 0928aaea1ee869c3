"""Run the one warm browser of a server: start it when it is needed, share it, and replace it before it goes bad.

`chromium` starts and ends it; `page_load` loads pages in it.
"""

import asyncio
import logging
from collections.abc import Coroutine
from contextvars import Context
from typing import TYPE_CHECKING, Any

from toolgate.tools.api.errors import ToolError
from toolgate.tools.api.spans import span
from toolgate.tools.browser.chromium import ABOUT_SANDBOX, END, LAUNCH_MODES, BrowserStartError, Chromium
from toolgate.tools.browser.proxy import BrowserProxy, Ticket
from toolgate.tools.fair_queue import FairQueue
from toolgate.tools.web.address_policy import AddressPolicy
from toolgate.tools.web.page import Resolve

if TYPE_CHECKING:
    from playwright.async_api import BrowserContext

    from toolgate.tools.browser.page_load import RenderedPage

PAGES = 6  # at once: a page takes 50 to 300 MiB, and half a processor while it loads
SHARE = 4  # of them for one principal, each for as long as a call may take: others find two
AGAIN = 30.0  # seconds before one that did not start is tried again: to find out may take START of each call
QUEUE = 30.0  # seconds a call waits for its turn; the rest of the time it is held is for the page
WORN_PAGES = 500  # after so many, leaks begin to tell
MEMORY = 1_536 * 2**20  # bytes of all its processes, beyond which it is replaced once its pages are done
PAGE_MEMORY = 768 * 2**20  # bytes of one page's process
MOST_MEMORY = 3 * 2**30  # bytes of all its processes, beyond which the largest page is ended
LOOK = 0.25  # seconds between looks at the memory, while there are pages
IDLE = 300.0  # seconds without a page before it ends
CLOSE = 3.0  # seconds for a page to be closed; one that does not takes its browser with it

log = logging.getLogger(__name__)


class BrowserLostError(ToolError):
    """The browser ended for no reason of this page's: it may be read in another."""


class RunningBrowser:
    """One Chromium and what it has done. `is_retired`: it gets no more pages, and ends with the last that it has."""

    def __init__(self, chromium: Chromium) -> None:
        self.chromium = chromium
        self.pages = 0
        self.count = 0
        self.is_retired = False
        self.is_lost = False  # for a page that was done: the others may be read again
        self.watch: asyncio.Task[None] | None = None

    @property
    def is_good(self) -> bool:
        return not self.is_retired and self.chromium.is_alive


class Browser:
    """`program` is Chromium's path. Nothing is started before the first page; `close` ends all."""

    def __init__(
        self, program: str, allowed: AddressPolicy, resolve: Resolve | None = None, *, idle: float = IDLE
    ) -> None:
        self.program = program
        self.proxy = BrowserProxy(allowed, resolve)
        self.sandboxed: bool | None = None  # None: not known before the first start
        self._idle = idle
        self._mode = 0  # of LAUNCH_MODES, the first that works here
        self._queue = FairQueue(PAGES, "pages", per_principal=SHARE)
        self._starting = asyncio.Lock()
        self._failure: tuple[float, BrowserStartError] | None = None  # when by the loop's clock, and why
        self._current: RunningBrowser | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    async def read(self, url: str, principal: str, wait: float, hold: float, *, is_source: bool) -> "RenderedPage":
        """The page at `url`, in a context of its own: `wait` seconds beyond the moment it is quiet, all in `hold`.

        Raises BrowserStartError, BusyError and what PageLoad does.
        """
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

        from toolgate.tools.browser.page_load import BrowserGoneError, PageLoad

        context: BrowserContext | None = None
        try:
            context = await running.chromium.context(ticket)
            return await PageLoad(context, ticket, url, wait, until, is_source).read()
        except (Error, BrowserGoneError) as error:
            running.is_retired = running.is_retired or context is None  # it is at its end, though not heard of yet
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
        """How many pages are open, and how many wait for their turn."""
        return self._queue.running, self._queue.waiting

    async def try_start(self) -> bool:
        """Start it, and tell whether its own sandbox is on. Raises BrowserStartError."""
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
        """The browser that takes the next page."""
        if self._timer is not None:
            self._timer.cancel()
        async with self._starting:
            if self._current is not None and not self._current.is_good:
                self._retire(self._current)
            if self._current is None:
                await self.proxy.open()
                self._current = RunningBrowser(await self._start_unless_failed())
                watching = self._watch(self._current)  # in no call's context, though a call has begun it
                self._current.watch = asyncio.get_running_loop().create_task(watching, context=Context())
            return self._current

    async def _start_unless_failed(self) -> Chromium:
        """What did not start a moment ago is not tried again at once."""
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
        """With its own sandbox wherever that works."""
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
        """It gets no more pages."""
        running.is_retired = True
        if self._current is running:
            self._current = None
        if running.pages == 0 or not running.chromium.is_alive:
            self._in_background(self._end(running))

    async def _leave(self, running: RunningBrowser, context: "BrowserContext | None", principal: str) -> None:
        """Close the page, and only then let another have its turn."""
        try:
            if context is not None and running.chromium.is_alive:
                async with asyncio.timeout(CLOSE):
                    await context.close()
        except TimeoutError:
            log.warning("a page does not close: ending its browser")
            running.is_lost = True
            await self._give_up(running)
        except Exception:  # the browser ended meanwhile, and said so in one of many ways
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
        """End a page that takes too much memory, before it takes all of it."""
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
        """End it with all its pages."""
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

"""Bound the pages that are read at once, and lend the browser and the workers that read them."""

import asyncio
from typing import TYPE_CHECKING

from toolgate.tools.fair_queue import FairQueue
from toolgate.tools.web.fetch import Web
from toolgate.tools.workers.pool import Workers

if TYPE_CHECKING:
    from toolgate.tools.browser.browser import Browser

# Pages that are read at once, from the first byte to the text: each may hold web.fetch.MAX_BODY, and more as text.
MAX_VISITS = 10
VISITS_SHARE = 6  # of them for one principal
MAX_LARGE = 3  # of them that may be larger than MAX_BODY
LARGE_SHARE = 2
MAX_WAITING = 128  # of one principal's pages: what is behind them would not be read in time


class PageReader:
    """What ReadDocs reads pages with, shared by all calls of one event loop.

    A call takes a slot of `visits` before it fetches, and one of `large` for a file larger than MAX_BODY: so memory is
    bounded. `chromium` is the path of a browser; None where there is none.
    """

    def __init__(self, web: Web, workers: Workers, chromium: str | None = None) -> None:
        self.web = web
        self.workers = workers
        self.visits = FairQueue(MAX_VISITS, "pages", per_principal=VISITS_SHARE, max_waiting=MAX_WAITING)
        self.large = FairQueue(MAX_LARGE, "large files", per_principal=LARGE_SHARE)
        self._chromium = chromium
        self._browser: Browser | None = None

    @property
    def browser(self) -> "Browser | None":
        """The one browser of all calls; None where there is none."""
        if self._browser is None and self._chromium is not None:
            from toolgate.tools.browser.browser import Browser  # start-up

            self._browser = Browser(self._chromium, self.web.allowed, self.web.resolve)
        return self._browser

    @property
    def browser_is_up(self) -> bool:
        return self._browser is not None and self._browser.is_up

    def depths(self) -> list[tuple[str, tuple[int, int]]]:
        """Return how many run and how many wait, by queue: `visits` of ReadDocs, `pages` of the browser, and jobs of
        the workers."""
        pages = self._browser.depth if self._browser is not None else (0, 0)
        return [("visits", (self.visits.running, self.visits.waiting)), ("pages", pages), *self.workers.depths()]

    async def close(self) -> None:
        """End the workers and the browser, and close the idle connections. A later read starts new ones."""
        browser, self._browser = self._browser, None
        closing = [part.close() for part in (self.web, browser, self.workers) if part is not None]
        for outcome in await asyncio.gather(*closing, return_exceptions=True):
            if isinstance(outcome, BaseException):
                raise outcome

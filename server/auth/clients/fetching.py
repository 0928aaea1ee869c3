"""Limit how many fetches of what clients publish run at once, and find out whether any document can be fetched.

A caller names the document, so one failed fetch says nothing. It makes the server try the well-known documents, whose
hosts no caller chooses, at most once a minute. Documents are unreachable when none of their hosts answers; any answer
of one makes them reachable again.
"""

import asyncio
import logging
import time
from collections import Counter
from collections.abc import AsyncGenerator, Awaitable, Callable, Collection
from contextlib import asynccontextmanager
from urllib.parse import urlsplit

from toolgate.tools.api.errors import ToolError

PAUSE = 60.0  # seconds between two tries: strangers can cause fetches that fail
AGAIN = 600.0  # seconds after which hosts that did not answer are tried again, when the metadata is read

Ask = Callable[[str], Awaitable[object]]

log = logging.getLogger("toolgate.auth")


class Reachability:
    """`urls` are tried with `fetch`, which raises ToolError where nothing answers. `consequence` says in the log what
    follows while documents are unreachable."""

    def __init__(
        self, urls: Collection[str], fetch: Ask, consequence: str, now: Callable[[], float] = time.time
    ) -> None:
        self._urls = tuple(urls)
        self._ask = fetch
        self._meanwhile = consequence
        self._now = now
        self._tried_at = float("-inf")
        self._trying: asyncio.Task[None] | None = None
        self.is_unreachable = False

    def report_failure(self) -> None:
        """A document could not be reached: try the well-known ones, unless that was done lately."""
        self._begin(PAUSE)

    def retry(self) -> None:
        """Try once more, after a while, where documents are out of reach."""
        if self.is_unreachable:
            self._begin(AGAIN)

    def report_answer(self, url: str) -> None:
        """Something answered at `url`."""
        if self.is_unreachable and url in self._urls:
            self.is_unreachable = False
            log.info("metadata documents of clients can be fetched again")

    async def close(self) -> None:
        """End what is under way."""
        if self._trying is not None:
            self._trying.cancel()
            await asyncio.gather(self._trying, return_exceptions=True)

    def _begin(self, pause: float) -> None:
        now = self._now()
        if not self._urls or self._trying is not None or 0 <= now - self._tried_at < pause:
            return
        self._tried_at = now
        self._trying = asyncio.get_running_loop().create_task(self._try())
        self._trying.add_done_callback(self._on_tried)

    def _on_tried(self, task: "asyncio.Task[None]") -> None:
        self._trying = None
        error = None if task.cancelled() else task.exception()
        if error is not None:
            log.error("whether documents of clients can be fetched is not known", exc_info=error)

    async def _try(self) -> None:
        failures = [failure for failure in await asyncio.gather(*map(self._failure, self._urls)) if failure]
        if len(failures) == len(self._urls) and not self.is_unreachable:
            self.is_unreachable = True
            hosts = " and ".join(urlsplit(url).hostname or "" for url in self._urls)
            log.warning(
                "no metadata document of a client can be fetched from %s: %s. %s", hosts, failures[0], self._meanwhile
            )

    async def _failure(self, url: str) -> str:
        """Why nothing answers at `url`; "" where something does."""
        try:
            await self._ask(url)
        except ToolError as error:
            return error.text
        self.report_answer(url)
        return ""


class NoFreeSlotError(Exception):
    """No slot became free in time."""


class FetchSlots:
    """At most `each` slots at once for one key, and `all` together, so that a slow host delays only its own fetches. A
    fetch that waits longer than `wait` seconds gets none."""

    def __init__(self, each: int, all: int, wait: float) -> None:
        self._each = each
        self._all = all
        self._wait = wait
        self._held: Counter[str] = Counter()
        self._freed = asyncio.Condition()

    @asynccontextmanager
    async def acquire(self, key: str) -> AsyncGenerator[None, None]:
        """A slot, for as long as the context lasts. Raises NoFreeSlotError."""
        try:
            async with asyncio.timeout(self._wait), self._freed:
                await self._freed.wait_for(lambda: self._held[key] < self._each and self._held.total() < self._all)
                self._held[key] += 1
        except TimeoutError:
            raise NoFreeSlotError from None
        try:
            yield
        finally:
            self._held[key] -= 1
            self._held += Counter()  # forget the keys of which none is held
            async with self._freed:
                self._freed.notify_all()

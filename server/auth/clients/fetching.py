"""Limit concurrent fetches of clients' documents, and detect whether any document can be fetched.

The caller chooses a document, so one failed fetch proves nothing. It makes the server try the well-known documents, on
hosts no caller chooses, at most once a minute. Documents count as unreachable when none of these hosts answers; any
answer makes them reachable again.
"""

import asyncio
import logging
import time
from collections import Counter
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager
from urllib.parse import urlsplit

from toolgate.tools.api.errors import ToolError

PAUSE = 60.0  # seconds between two tries: strangers can cause failing fetches
AGAIN = 600.0  # seconds before unreachable hosts are tried again, when the metadata is read

Ask = Callable[[str], Awaitable[object]]

log = logging.getLogger("toolgate.auth")


class Reachability:
    """Detect whether documents can be fetched. `urls` are tried with `fetch`, which raises ToolError without an answer.
    `consequence` is the log's sentence on what follows."""

    def __init__(self, urls: Iterable[str], fetch: Ask, consequence: str, now: Callable[[], float] = time.time) -> None:
        self._urls = tuple(urls)
        self._ask = fetch
        self._effect = consequence
        self._now = now
        self._tried_at = float("-inf")
        self._trying: asyncio.Task[None] | None = None
        self.is_unreachable = False

    def report_failure(self) -> None:
        """Try the well-known documents after a failed fetch, unless that was done lately."""
        self._begin(PAUSE)

    def retry(self) -> None:
        """Try again after a while, if documents are unreachable."""
        if self.is_unreachable:
            self._begin(AGAIN)

    def report_answer(self, url: str) -> None:
        """Note an answer at `url`."""
        if self.is_unreachable and url in self._urls:
            self.is_unreachable = False
            log.info("metadata documents of clients can be fetched again")

    async def close(self) -> None:
        """Cancel the running tries."""
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
            log.error("the check whether clients' documents can be fetched failed", exc_info=error)

    async def _try(self) -> None:
        faults = [failure for failure in await asyncio.gather(*map(self._failure, self._urls)) if failure]
        if len(faults) == len(self._urls) and not self.is_unreachable:
            self.is_unreachable = True
            hosts = " and ".join(urlsplit(url).hostname or "" for url in self._urls)
            log.warning(
                "no metadata document of a client can be fetched from %s: %s. %s", hosts, faults[0], self._effect
            )

    async def _failure(self, url: str) -> str:
        """Return why `url` gives no answer, or ""."""
        try:
            await self._ask(url)
        except ToolError as error:
            return error.text
        self.report_answer(url)
        return ""


class NoFreeSlotError(Exception):
    """No slot became free in time."""


class FetchSlots:
    """At most `each` slots for one key and `all` in total, so that a slow host delays only its own fetches. A fetch
    waits at most `wait` seconds."""

    def __init__(self, each: int, all: int, wait: float) -> None:
        self._each = each
        self._all = all
        self._wait = wait
        self._held: Counter[str] = Counter()
        self._freed = asyncio.Condition()

    @asynccontextmanager
    async def acquire(self, key: str) -> AsyncGenerator[None, None]:
        """Hold a slot while the context lasts. Raises NoFreeSlotError."""
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
            self._held += Counter()  # drops keys without slots
            async with self._freed:
                self._freed.notify_all()

"""Find out whether metadata documents of clients can be fetched at all, by hosts that no caller chooses.

A caller names the document, so one failed fetch says nothing. It makes the server try the well-known documents, at most
once a minute. Documents are unreachable when none of their hosts answers; any answer of one makes them reachable again.
"""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Collection
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

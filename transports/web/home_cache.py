"""What the open pages of one person show, looked up and made once for all of them. Knows neither streams nor requests.

All of it runs on the loop that serves everybody: so a look that cost much is followed by a long pause, whatever happens
meanwhile, and the pages are told then.
"""

import asyncio
import secrets
import time
from typing import Any

from toolgate.transports.web.home import HomePage
from toolgate.transports.web.home_data import PARTS
from toolgate.transports.web.page_context import Visitor

REST = 10  # times what a look cost, until the next one


class HomeCache:
    """`parts` by their names, and the ids of the background tasks that run; both empty before the first look."""

    def __init__(self, home: HomePage, visitor: Visitor) -> None:
        self.parts: dict[str, str] = {}
        self.running: list[int] = []
        self._home = home
        self._visitor = visitor
        self._mark = secrets.token_hex(32)  # where each page has a token of its own: nobody can have it in a text
        self._begun = 0.0  # when the last look was, in the monotonic clock's seconds
        self._due = 0.0  # and when the next one may be
        self._lock = asyncio.Lock()

    def with_csrf(self, html: str, csrf: str) -> str:
        """A part for the page that has this token."""
        return html.replace(self._mark, csrf)

    async def refresh(self, moment: float) -> float:
        """Look, unless somebody has since then: 0.0; or when that may be, where it is not yet. Raises StateError."""
        async with self._lock:
            if self._begun >= moment:
                return 0.0
            begun = time.monotonic()
            if begun < self._due:
                return self._due
            try:
                await self._make()
                self._begun = begun
            finally:
                self._due = time.monotonic() + REST * (time.monotonic() - begun)
        return 0.0

    async def _make(self) -> None:
        values: dict[str, Any] = {**await self._home.part_values(self._visitor, self._mark), "live": True}
        parts: dict[str, str] = {}
        for name in PARTS:
            parts[name] = self._home.context.pages.render_part("home_parts", name, values)
            await asyncio.sleep(0)  # others have their turn between two parts
        self.parts = parts
        self.running = [shown.run.id for shown in values["going"].runs if shown.running]

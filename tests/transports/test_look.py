"""One look for all pages of a person, and how soon the next one is."""

import asyncio
import time
from typing import Any, cast

from toolgate.server.overview import Going, ShownCallback
from toolgate.transports.forms import NOBODY, Forms
from toolgate.transports.glance import PARTS
from toolgate.transports.home import Home
from toolgate.transports.look import REST, Look

COST = 0.02  # seconds


class _Home:
    """As much of the first page as a look needs."""

    def __init__(self) -> None:
        self.forms = Forms("http://127.0.0.1:1", "t")
        self.looks = 0

    async def parts(self, _visitor: Any, csrf: str) -> dict[str, Any]:
        self.looks += 1
        await asyncio.sleep(COST)
        going = Going([], callbacks=[ShownCallback(1, "m", 60, 0.0, 1)])
        return {"csrf": csrf, "going": going, "questions": [], "sessions": [], "more_sessions": 0, "grants": []} | {
            "names": {}
        }


def test_pages_share_a_look_and_a_costly_one_is_followed_by_a_pause() -> None:
    async def body() -> None:
        home = _Home()
        seen = Look(cast(Home, home), NOBODY)
        now = time.monotonic()
        assert await asyncio.gather(*(seen.since(now) for _ in range(8))) == [0.0] * 8
        assert home.looks == 1 and tuple(seen.parts) == PARTS
        bound = seen.bound(seen.parts["callbacks"], "mine")
        assert 'name="csrf" value="mine"' in bound and bound != seen.parts["callbacks"]
        due = await seen.since(time.monotonic())
        assert home.looks == 1 and due - now >= COST * (REST + 1) * 0.9
        await asyncio.sleep(due - time.monotonic())
        assert await seen.since(due) == 0.0 and home.looks == 2

    asyncio.run(body())

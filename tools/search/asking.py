"""Asks engines, all at once, and says how each did. Knows statuses and deadlines; ranks nothing."""

import asyncio
import logging
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal

import msgspec

from toolgate.tools.errors import ToolError
from toolgate.tools.search.engine import Engine, Found
from toolgate.tools.search.fusion import usable
from toolgate.tools.web import TimedOut

if TYPE_CHECKING:
    from toolgate.tools.web import Page, Web

log = logging.getLogger(__name__)

ENGINE_TIME = 5.0  # seconds for one engine; the deadline of all may be shorter
MAX_ANSWER = 2 * 2**20  # bytes of an engine's answer
BLOCKED = frozenset({202, 403, 429})  # DuckDuckGo asks for a proof of being human with a 202
# What stands on a page that is shown instead of results. Looked for only where there are no results.
REFUSALS = (
    b"captcha",
    b"anomaly",
    b"unusual traffic",
    b"are you a robot",
    b"throttle_violation",
    b"rate limit",
)
REFUSALS_WITHIN = 200_000  # bytes

Status = Literal["ok", "empty", "blocked", "timeout", "error"]


class Asked(msgspec.Struct, frozen=True):
    """How one engine did: `found` is its results, best first, and `ms` how long it took."""

    name: str
    status: Status
    found: list[Found]
    ms: int


async def ask_all(web: "Web", engines: Sequence[Engine], query: str, deadline: float) -> list[Asked]:
    """Ask all engines together, for at most `deadline` seconds; in the order given, each with what it did."""
    start = time.monotonic()
    tasks = {engine.name: asyncio.ensure_future(_ask(web, engine, query, deadline)) for engine in engines}
    try:
        await asyncio.wait(tasks.values(), timeout=deadline)
    finally:
        late = [task for task in tasks.values() if not task.done()]
        for task in late:
            task.cancel()
        await asyncio.gather(*late, return_exceptions=True)
    ms = round((time.monotonic() - start) * 1000)
    return [Asked(name, "timeout", [], ms) if task in late else task.result() for name, task in tasks.items()]


async def _ask(web: "Web", engine: Engine, query: str, deadline: float) -> Asked:
    start = time.monotonic()
    found: list[Found] = []
    try:
        page = await web.fetch(
            engine.address(query),
            headers=engine.headers,
            limit=MAX_ANSWER,
            timeout=min(ENGINE_TIME, deadline),
        )
        status, found = await asyncio.to_thread(_read, engine, page)
    except TimedOut:
        status = "timeout"
    except ToolError as error:
        log.info("search engine %s: %s", engine.name, error.text)
        status = "error"
    return Asked(engine.name, status, found, round((time.monotonic() - start) * 1000))


def _read(engine: Engine, page: "Page") -> tuple[Status, list[Found]]:
    if page.status in BLOCKED:
        return "blocked", []
    if page.status >= 400:
        return _without(page, "error"), []
    try:
        found = engine.parse(page.body)
    except Exception:  # an engine that answers nonsense must not take the others with it
        log.info("search engine %s answered what can't be read", engine.name, exc_info=True)
        return _without(page, "error"), []
    return ("ok", found) if usable(found) else (_without(page, "empty"), [])


def _without(page: "Page", status: Status) -> Status:
    """Whether an answer without results is a refusal."""
    start = page.body[:REFUSALS_WITHIN].lower()
    return "blocked" if any(words in start for words in REFUSALS) else status

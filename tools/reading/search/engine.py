"""Define what a search engine is, what it answers, and how it fails."""

import re
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Any, Protocol, TypeVar

import msgspec

from toolgate.tools.api.context.services import Page
from toolgate.tools.api.text.cleaning import strip_markup
from toolgate.tools.reading.search.outcome import EngineResult
from toolgate.tools.reading.search.urls import page_key, remove_tracking, unwrap_redirect

T = TypeVar("T")

MAX_FOUND = 20  # results taken from one engine
MAX_TITLE = 200  # characters
MAX_SNIPPET = 300
ENGINE_TIME = 5.0  # seconds; most answer within one
# 202: DuckDuckGo's proof of being human; 999: Yahoo's; 403: also GitHub's hourly quota.
BLOCKED = frozenset({202, 403, 418, 429, 999})
# Texts of a refusal, looked for on a page without results only.
REFUSAL = (  # compiled when it is needed: start-up
    r"captcha|anomaly|unusual (?:traffic|activity)|(?:are you|not) a robot|you are (?:a )?human|throttle_violation"
    r"|rate.?limit|too many requests|automated (?:quer|request)|just a moment"
)
REFUSED_AT = r"captcha|/sorry|/blocked|challenge"  # in the address of a redirect
REFUSALS_WITHIN = 200_000  # bytes or characters


class EngineAnswer(msgspec.Struct, frozen=True):
    """An engine's answer: results, best first, and the seconds until it accepts another query."""

    results: list[EngineResult]
    wait: float = 0.0


class EngineRequest(msgspec.Struct, frozen=True):
    url: str
    method: str = "GET"
    headers: Mapping[str, str] = {}
    body: bytes = b""


class EngineFailedError(Exception):
    """The engine's answer has no results. `wait`: seconds that the engine asks for. `is_engine_fault`: the query is not
    the cause."""

    def __init__(self, reason: str, wait: float = 0.0, *, is_engine_fault: bool = True) -> None:
        super().__init__(reason)
        self.reason, self.wait, self.is_engine_fault = reason, wait, is_engine_fault


class EngineBlockedError(EngineFailedError):
    """The engine refuses to answer."""


FetchPage = Callable[[EngineRequest], Awaitable[Page]]


class RunJob(Protocol):
    """Runs a worker job that reads an HTML page. Raises WorkerLimitError and ToolError."""

    async def __call__(self, job: Any, kind: type[T]) -> T: ...


class Engine(Protocol):
    """A row of the table. `standard`: used unless the operator chooses engines."""

    @property
    def name(self) -> str: ...
    @property
    def url(self) -> str: ...
    @property
    def seconds(self) -> float: ...
    @property
    def standard(self) -> bool: ...

    def at(self, url: str) -> "Engine":
        """Return the same engine at another address."""
        ...

    async def ask(self, query: str, fetch: FetchPage, work: RunJob) -> EngineAnswer:
        """Return the answer. Raises EngineFailedError, ToolError; ValueError or DecodeError if unreadable."""
        ...


class EngineQuery(msgspec.Struct, eq=False):
    """A principal's query for one engine. `until`, by the loop's clock, is the end of the engine's time. `is_queued`:
    other queries delayed it, so a timeout is not the engine's fault."""

    engine: Engine
    query: str
    principal: str
    until: float = 0.0
    is_queued: bool = True

    def begin(self) -> None:
        self.is_queued = False


def clean_results(results: Iterable[tuple[str, str, str]]) -> list[EngineResult]:
    """Return the usable results of (title, url, snippet), cleaned, each page once."""
    pages: dict[str, EngineResult] = {}
    for title, url, snippet in results:
        target = remove_tracking(unwrap_redirect(url))
        key = page_key(target)
        if key is not None and key not in pages:
            name = strip_markup(title, MAX_TITLE) or target
            pages[key] = EngineResult(name, target, strip_markup(snippet, MAX_SNIPPET))
        if len(pages) == MAX_FOUND:
            break
    return list(pages.values())


def check_answer(page: Page) -> Page:
    """Return the page if it is an answer. Raises EngineFailedError, EngineBlockedError for a refusal."""
    status, wait = page.status, parse_wait(page)
    if status in BLOCKED or re.search(REFUSED_AT, page.headers.get("location", "")):
        raise EngineBlockedError(f"HTTP {status}", wait)
    if status >= 400 and is_refusal(page.body):
        raise EngineBlockedError(f"HTTP {status}: it asks to wait or to prove being human", wait)
    if status >= 400:
        detail = " (it does not take the key)" if status == 401 else ""
        is_fault = status >= 500 or status in (401, 402, 404, 410)
        raise EngineFailedError(f"HTTP {status}{detail}", wait, is_engine_fault=is_fault)
    if status >= 300:
        raise EngineFailedError(f"HTTP {status}: it redirects searches")
    return page


def is_refusal(body: bytes) -> bool:
    """Return whether an answer without results is a refusal."""
    return re.search(REFUSAL, body[:REFUSALS_WITHIN].decode("utf-8", "replace").lower()) is not None


def parse_wait(page: Page) -> float:
    """Return the seconds of `Retry-After` (RFC 9110, 10.2.3: seconds or a date) or GitHub's x-ratelimit headers, else
    0. A date is compared with the engine's own clock if the answer has it, since ours may be off."""
    after = page.headers.get("retry-after", "").strip()
    if after.isascii() and after.isdigit():
        return float(after[:9])
    now = _date(page.headers.get("date", "")) or time.time()
    if after:
        return max(_date(after) - now, 0.0)
    reset = page.headers.get("x-ratelimit-reset", "")
    if page.headers.get("x-ratelimit-remaining") == "0" and reset.isascii() and reset.isdigit():
        return max(float(reset[:12]) - now, 0.0)
    return 0.0


def _date(word: str) -> float:
    from email.utils import parsedate_to_datetime  # start-up

    try:
        return parsedate_to_datetime(word).timestamp()
    except (ValueError, OverflowError):
        return 0.0

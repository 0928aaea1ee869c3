"""Query engines made for people: fetch their pages here, and read them with `ddgs` (MIT) in a worker.

Only its knowledge of pages is used, not its transport. Its classes send requests by `primp`, which resolves names and
follows redirects itself, so an answer could lead it to addresses that the policy refuses. `primp` also blocks a thread
that can't be cancelled, reads bodies of any size, and poses as a random browser. So `Web` sends the requests, and
`ddgs` only builds them and reads pages, in a worker (ddgs_worker.py) without a network that may be killed. An engine
that accepts only browsers refuses, and counts as blocked.
"""

import re
from typing import Protocol, TypeVar
from urllib.parse import urlsplit, urlunsplit

import msgspec

from toolgate.tools.reading.search.engine import (
    ENGINE_TIME,
    REFUSED_AT,
    EngineAnswer,
    EngineBlockedError,
    EngineFailedError,
    EngineQuery,
    EngineRequest,
    FetchPage,
    RunJob,
    check_answer,
)

T = TypeVar("T")

MAX_FIRST = 2  # pages needed before the results: Startpage's own, for a token
BROWSER_HEADERS = {"accept": "text/html,application/xhtml+xml;q=0.9,*/*;q=0.5", "accept-language": "en-US,en;q=0.8"}


class BuildRequestJob(msgspec.Struct, frozen=True, tag=True):
    """Build the request to `engine` for `query`. `pages` are those already fetched, by address."""

    engine: str
    query: str
    pages: dict[str, bytes] = {}


class ReadResultsJob(msgspec.Struct, frozen=True, tag=True):
    """Read the results of this page."""

    engine: str
    query: str
    body: bytes


class JobBatch(msgspec.Struct, frozen=True):
    """Jobs sent to a worker together; the answer is a list of the same length."""

    jobs: list[BuildRequestJob | ReadResultsJob]


class BuiltRequest(msgspec.Struct, frozen=True, tag=True):
    """A request. `is_preliminary`: it fetches a page that the next request needs."""

    request: EngineRequest
    is_preliminary: bool = False


class ReadResults(msgspec.Struct, frozen=True, tag=True):
    """The results of a page. `is_empty`: it says that nothing was found; `is_refusal`: the engine refuses."""

    answer: EngineAnswer
    is_empty: bool = False
    is_refusal: bool = False


class JobFailure(msgspec.Struct, frozen=True, tag=True):
    """The job failed; `text` is a traceback."""

    text: str


DdgsResult = BuiltRequest | ReadResults | JobFailure


class ResultReader(Protocol):
    """Reads the pages of one engine where a page may take for ever."""

    async def read(self, query: EngineQuery, job: BuildRequestJob | ReadResultsJob, kind: type[T]) -> T:
        """Return the result of a job for `query`, which begins with it. Raises WorkerLimitError, ToolError, and
        ValueError for an unreadable page."""
        ...


class HtmlEngine(msgspec.Struct, frozen=True):
    """A row of the table: `name` and address are `ddgs`'s; `url` replaces the address."""

    name: str
    url: str = ""
    seconds: float = ENGINE_TIME
    standard: bool = True

    def at(self, url: str) -> "HtmlEngine":
        return msgspec.structs.replace(self, url=url)

    async def ask(self, query: str, fetch: FetchPage, work: RunJob) -> EngineAnswer:
        page = check_answer(await fetch(await self._build_request(query, fetch, work)))
        if page.truncated:
            raise EngineFailedError("its page is too large")
        read = await _run_job(work, ReadResultsJob(self.name, query, page.body), ReadResults)
        if read.answer.results:
            return read.answer
        if read.is_refusal or re.search(REFUSED_AT, urlsplit(page.url).path):
            raise EngineBlockedError("it asks for proof of being human instead of giving results")
        if not read.is_empty:  # a changed page must not look like one without results
            raise EngineFailedError("no results could be read from its page")
        return read.answer

    async def _build_request(self, query: str, fetch: FetchPage, work: RunJob) -> EngineRequest:
        pages: dict[str, bytes] = {}
        for _ in range(MAX_FIRST + 1):
            worded = await _run_job(work, BuildRequestJob(self.name, query, pages), BuiltRequest)
            request = self._with_address(worded)
            if not worded.is_preliminary:
                return request
            pages[worded.request.url] = check_answer(await fetch(request)).body
        raise EngineFailedError("it needs too many pages before it can be asked")

    def _with_address(self, worded: BuiltRequest) -> EngineRequest:
        """Return the request, at the engine's configured address if there is one."""
        request = worded.request
        headers = {**BROWSER_HEADERS, **request.headers}
        url = request.url
        if self.url:
            ours, theirs = urlsplit(self.url), urlsplit(url)
            path = theirs.path if worded.is_preliminary else ours.path
            url = urlunsplit((ours.scheme, ours.netloc, path, theirs.query, ""))
        return msgspec.structs.replace(request, url=url, headers=headers)


async def _run_job(work: RunJob, job: BuildRequestJob | ReadResultsJob, kind: type[T]) -> T:
    from toolgate.tools.reading.workers.pool import WorkerLimitError  # start-up of a worker

    try:
        return await work(job, kind)
    except WorkerLimitError as error:
        raise EngineFailedError(f"its page {error} when read") from None

"""Query engines made for people: their pages are fetched here, and read by the library `ddgs` (MIT) in a worker.

Why its knowledge and not its transport. Its classes send requests by `primp`, which resolves names and follows
redirects by itself, so an engine's answer, or a forged DNS one, could lead it to addresses our guard refuses; which
blocks a thread that can't be cancelled, so sockets would outlive a cancelled search; which reads bodies of any size;
and which poses as a random browser, where we say who asks. So what is asked for goes out by the guarded `Web`, and
`ddgs` only builds requests and reads pages, in a worker (ddgs_worker.py) that may be killed and is never connected. The
price: an engine that lets in only what looks like a browser answers with a refusal. It counts as blocked.
"""

from typing import TypeVar
from urllib.parse import urlsplit, urlunsplit

import msgspec

from toolgate.tools.search.engine import (
    ENGINE_TIME,
    REFUSED_AT,
    EngineAnswer,
    EngineBlockedError,
    EngineFailedError,
    EngineRequest,
    FetchPage,
    RunJob,
    check_answer,
)

T = TypeVar("T")

MAX_FIRST = 2  # pages that have to be read before the one of results can be asked for: Startpage's own, for a token
BROWSER_HEADERS = {"accept": "text/html,application/xhtml+xml;q=0.9,*/*;q=0.5", "accept-language": "en-US,en;q=0.8"}


class BuildRequestJob(msgspec.Struct, frozen=True, tag=True):
    """How is `engine` asked for `query`? `pages` are those it has seen, by address."""

    engine: str
    query: str
    pages: dict[str, bytes] = {}


class ReadResultsJob(msgspec.Struct, frozen=True, tag=True):
    """What does this page of results say?"""

    engine: str
    query: str
    body: bytes


class JobBatch(msgspec.Struct, frozen=True):
    """What is asked of a worker at once; the answer is a list of as many."""

    jobs: list[BuildRequestJob | ReadResultsJob]


class BuiltRequest(msgspec.Struct, frozen=True, tag=True):
    """`is_preliminary`: the request is for a page that the next request needs."""

    request: EngineRequest
    is_preliminary: bool = False


class ReadResults(msgspec.Struct, frozen=True, tag=True):
    """`is_empty`: the page says that nothing was found; `is_refusal`: that the engine refuses to answer."""

    answer: EngineAnswer
    is_empty: bool = False
    is_refusal: bool = False


class JobFailure(msgspec.Struct, frozen=True, tag=True):
    """It could not be done; `text` is a traceback."""

    text: str


DdgsResult = BuiltRequest | ReadResults | JobFailure


class HtmlEngine(msgspec.Struct, frozen=True):
    """A row of the table: `name` is `ddgs`'s, and so is the address, unless `url` is given in its place."""

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
        if read.is_refusal or REFUSED_AT.search(urlsplit(page.url).path):
            raise EngineBlockedError("it asks for proof of being human instead of giving results")
        if not read.is_empty:  # an engine that has changed its pages must not look like one without results
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
        """The request, to the address given for this engine, if one is."""
        request = worded.request
        headers = {**BROWSER_HEADERS, **request.headers}
        url = request.url
        if self.url:
            ours, theirs = urlsplit(self.url), urlsplit(url)
            path = theirs.path if worded.is_preliminary else ours.path
            url = urlunsplit((ours.scheme, ours.netloc, path, theirs.query, ""))
        return msgspec.structs.replace(request, url=url, headers=headers)


async def _run_job(work: RunJob, job: BuildRequestJob | ReadResultsJob, kind: type[T]) -> T:
    from toolgate.tools.workers.pool import WorkerLimitError  # start-up of a worker

    try:
        return await work(job, kind)
    except WorkerLimitError as error:
        raise EngineFailedError(f"its page {error} when read") from None

"""Engines that answer people: their pages are asked for and read as `ddgs` (MIT) knows how. Knows nothing of HTML.

Why its knowledge and not its transport. Its classes send requests by `primp`, which resolves names and follows
redirects by itself, so an engine's answer, or a forged DNS one, could lead it to addresses our guard refuses; which
blocks a thread that can't be cancelled, so sockets would outlive a cancelled search; which reads bodies of any size;
and which poses as a random browser, where we say who asks. So what is asked for goes out by the guarded `Web`, and
`ddgs` only builds requests and reads pages, in a worker (ddgs_worker.py) that may be killed and is never connected. The
price: an engine that lets in only what looks like a browser answers with a refusal. It is then told as blocked.
"""

from typing import TypeVar
from urllib.parse import urlsplit, urlunsplit

import msgspec

from toolgate.tools.search.engine import (
    ENGINE_TIME,
    REFUSED_AT,
    Blocked,
    Failed,
    Fetch,
    Reading,
    Request,
    Work,
    checked,
)

T = TypeVar("T")

MAX_FIRST = 2  # pages that have to be read before the one of results can be asked for: Startpage's own, for a token
LIKE_A_PERSON = {
    "accept": "text/html,application/xhtml+xml;q=0.9,*/*;q=0.5",
    "accept-language": "en-US,en;q=0.8",
}


class Wording(msgspec.Struct, frozen=True, tag=True):
    """How is `engine` asked for `query`? `pages` are those it has seen, by address."""

    engine: str
    query: str
    pages: dict[str, bytes] = {}


class Results(msgspec.Struct, frozen=True, tag=True):
    """What does this page of results say?"""

    engine: str
    query: str
    body: bytes


class Jobs(msgspec.Struct, frozen=True):
    """What is asked of a worker at once; the answer is a list of as many."""

    jobs: list[Wording | Results]


class Worded(msgspec.Struct, frozen=True, tag=True):
    """The request; `first`: only to see its page."""

    request: Request
    first: bool = False


class Read(msgspec.Struct, frozen=True, tag=True):
    """`nothing`: the page says that nothing was found; `refused`: that it does not want to be asked."""

    reading: Reading
    nothing: bool = False
    refused: bool = False


class Fault(msgspec.Struct, frozen=True, tag=True):
    """It could not be done; `text` is a traceback."""

    text: str


Done = Worded | Read | Fault


class Scraped(msgspec.Struct, frozen=True):
    """A row of the table: `name` is `ddgs`'s, and so is the address, unless `url` is given in its place."""

    name: str
    url: str = ""
    seconds: float = ENGINE_TIME
    standard: bool = True

    def at(self, url: str) -> "Scraped":
        return msgspec.structs.replace(self, url=url)

    async def ask(self, query: str, fetch: Fetch, work: Work) -> Reading:
        page = checked(await fetch(await self._worded(query, fetch, work)))
        if page.truncated:
            raise Failed("its page is too large")
        read = await _had(work, Results(self.name, query, page.body), Read)
        if read.reading.found:
            return read.reading
        if read.refused or REFUSED_AT.search(urlsplit(page.url).path):
            raise Blocked("a proof of being human where results should be")
        if (
            not read.nothing
        ):  # nothing hides: an engine that has changed its pages must not look like one without results
            raise Failed("no results could be read from its page")
        return read.reading

    async def _worded(self, query: str, fetch: Fetch, work: Work) -> Request:
        pages: dict[str, bytes] = {}
        for _ in range(MAX_FIRST + 1):
            worded = await _had(work, Wording(self.name, query, pages), Worded)
            request = self._placed(worded)
            if not worded.first:
                return request
            pages[worded.request.url] = checked(await fetch(request)).body
        raise Failed("it needs too many pages before it can be asked")

    def _placed(self, worded: Worded) -> Request:
        """The request, to the address given for this engine, if one is."""
        request = worded.request
        headers = {**LIKE_A_PERSON, **request.headers}
        url = request.url
        if self.url:
            ours, theirs = urlsplit(self.url), urlsplit(url)
            path = theirs.path if worded.first else ours.path
            url = urlunsplit((ours.scheme, ours.netloc, path, theirs.query, ""))
        return msgspec.structs.replace(request, url=url, headers=headers)


async def _had(work: Work, job: Wording | Results, kind: type[T]) -> T:
    from toolgate.tools.workers.pool import Overtaxed  # start-up

    try:
        return await work(job, kind)
    except Overtaxed as error:
        raise Failed(f"its page {error} when read") from None

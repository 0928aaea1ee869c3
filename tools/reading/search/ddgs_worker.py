"""Have `ddgs`'s engine classes build requests and read pages for html_engine.py, in a worker without a network.

Their own transport is replaced by one that notes cookies and returns pages already fetched. Their result type is not
used: it decodes URLs until `%2F` is `/`, and strips tags in quadratic time.
"""

import importlib
import re
import traceback
from types import SimpleNamespace
from typing import Any
from urllib.parse import urlencode

from toolgate.tools.api.errors import ToolError
from toolgate.tools.reading.search.engine import REFUSAL, REFUSALS_WITHIN, EngineAnswer, EngineRequest, clean_results
from toolgate.tools.reading.search.html_engine import (
    BuildRequestJob,
    BuiltRequest,
    DdgsResult,
    JobBatch,
    JobFailure,
    ReadResults,
    ReadResultsJob,
)
from toolgate.tools.reading.web.html.parse import parse_html

REGION = "us-en"  # the tool's answers are in English; engines otherwise use the server's country
PAGE = 300_000  # bytes of a page that is read only for a token
MARKS = re.compile(r"captcha|anomaly|challenge")  # in a page's attributes
NOTHING = re.compile(
    r"\bno (?:\w+ ){0,2}(?:results|matches|pages|documents)\b|did not (?:match|find)|couldn.t find|could not find"
    r"|(?:do|have)(?:es)? ?n[o']t (?:match|find|found)|not find (?:any )?results|nothing found|too few matches"
)


class PageNeededError(Exception):
    """A page must be fetched first: the argument is its request."""


class PageTransport:
    """The connection that the `ddgs` classes get."""

    def __init__(self, pages: dict[str, bytes]) -> None:
        self.client = self
        self.pages = pages
        self.cookies: dict[str, str] = {}

    def set_cookies(self, url: str, cookies: dict[str, str]) -> None:
        self.cookies.update(cookies)

    def request(self, method: str, url: str, **given: Any) -> Any:
        if url not in self.pages:
            raise PageNeededError(EngineRequest(url, method))
        text = self.pages[url][:PAGE].decode("utf-8", "replace")
        return SimpleNamespace(status_code=200, text=text, content=self.pages[url])


def prepare() -> None:
    importlib.import_module("ddgs.engines")  # 0.1 s


def run_jobs(jobs: JobBatch) -> list[DdgsResult]:
    return [_run_job(job) for job in jobs.jobs]


def _run_job(job: BuildRequestJob | ReadResultsJob) -> DdgsResult:
    try:
        return build_request(job) if isinstance(job, BuildRequestJob) else read_results(job)
    except (ToolError, MemoryError):
        raise
    except Exception:  # noqa: BLE001  # one unreadable page does not cost the engine's others
        return JobFailure(traceback.format_exc())


def build_request(job: BuildRequestJob) -> BuiltRequest:
    transport = PageTransport(job.pages)
    engine = _engine(job.engine, transport)
    try:
        payload = engine.build_payload(query=job.query, region=REGION, safesearch="moderate", timelimit=None, page=1)
    except PageNeededError as needed:
        return BuiltRequest(needed.args[0], is_preliminary=True)
    headers = {name.lower(): value for name, value in engine.headers_update.items()}
    if transport.cookies:
        headers["cookie"] = "; ".join(f"{name}={value}" for name, value in transport.cookies.items())
    form = urlencode(payload)
    if engine.search_method == "GET":
        return BuiltRequest(EngineRequest(f"{engine.search_url}?{form}", headers=headers))
    headers["content-type"] = "application/x-www-form-urlencoded; charset=utf-8"
    return BuiltRequest(EngineRequest(engine.search_url, "POST", headers, form.encode()))


def read_results(job: ReadResultsJob) -> ReadResults:
    engine = _engine(job.engine, PageTransport({}))
    page = job.body.decode("utf-8", "replace")
    try:
        results = engine.post_extract_results(engine.extract_results(page))
    except Exception:
        if parse_html(page) is not None:
            raise
        return ReadResults(EngineAnswer([]))  # an empty page is an error to lxml
    reading = EngineAnswer(clean_results((result.title, result.href, result.body) for result in results))
    return ReadResults(reading) if reading.results else _read_refusal(engine.extract_tree(page), job.query)


def _read_refusal(tree: Any, query: str) -> ReadResults:
    """Return the reason on a page without results; words of the query don't count, as the page repeats them."""
    marks = " ".join(tree.xpath("//@id | //@class | //@action | //@src | //@name"))[:REFUSALS_WITHIN].lower()
    for element in tree.xpath("//script | //style"):
        element.text = None
    words = " ".join(" ".join(tree.itertext()).split())[:REFUSALS_WITHIN].lower()
    words = words.replace(" ".join(query.lower().split()), "")
    nothing = NOTHING.search(words) is not None
    refused = re.search(REFUSAL, words) is not None or (not nothing and MARKS.search(marks) is not None)
    return ReadResults(EngineAnswer([]), nothing, refused)


def _engine(name: str, transport: PageTransport) -> Any:
    from ddgs.engines import ENGINES

    kind = ENGINES["text"].get(name)
    if kind is None:
        raise ToolError(f"the ddgs library no longer knows {name}")
    result = lambda: SimpleNamespace(title="", href="", body="")  # noqa: E731
    engine: Any = object.__new__(type(kind.__name__, (kind,), {"result_type": property(lambda _: result)}))
    engine.http_client = transport
    return engine

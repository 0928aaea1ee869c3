"""Read pages and pictures at the node of the principal who asks."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

from toolgate.server.features.nodes.pages.methods import PageMethods
from toolgate.tools.api.context.services import Page, PageFetcher
from toolgate.tools.api.errors import ToolError
from toolgate.tools.api.outbound.errors import PageTimeoutError, shorten_url
from toolgate.tools.api.outbound.fetch import MAX_BODY
from toolgate.tools.api.text.cleaning import to_line
from toolgate.tools.reading.pages.page_reader import (
    MAX_ANSWER,
    PageDocument,
    PageRequest,
    PictureRequest,
    create_timeout_error,
)
from toolgate.tools.reading.search.engine import Engine, EngineFailedError, EngineQuery
from toolgate.tools.reading.search.html_engine import BuildRequestJob, ReadResultsJob, ResultReader
from toolgate.tools.reading.search.query import MAX_REASON
from toolgate.tools.reading.workers.pictures import FittedPicture
from toolgate.tools.reading.workers.pool import WorkerLimitError
from toolgate.tools.workspace.workspace import Workspace

T = TypeVar("T")
GetPages = Callable[[str], PageMethods]

MARGIN = 0.5  # seconds after a page's time that its node's own error is waited for
EARLY = 0.2  # seconds before the end of a search job's time at which its node answers


class RemotePageReader:
    """A PageReader whose browsers and workers are at nodes. `get_pages` returns the methods of a principal's node."""

    def __init__(self, get_pages: GetPages) -> None:
        self._get_pages = get_pages

    async def read(self, request: PageRequest) -> PageDocument:
        node, seconds = self._get_pages(request.principal), request.seconds_left
        try:
            async with asyncio.timeout_at(request.deadline + MARGIN):
                document = await node.read_page(
                    request.url, request.format, request.wait, request.offset, request.hold, seconds
                )
        except TimeoutError:
            raise create_timeout_error(request) from None
        if len(document.text) > MAX_ANSWER:
            raise ToolError(f"the node's answer for {shorten_url(request.url)} is longer than a page may be")
        return document

    async def fit_picture(self, request: PictureRequest, workspace: Workspace) -> FittedPicture:
        node = self._get_pages(request.principal)
        picture = await node.fit_picture(
            request.path, request.bytes, request.pixels, request.patience, anywhere=request.anywhere
        )
        if len(picture.data) > request.bytes:
            raise ToolError(f"the node's answer for {request.path} is larger than a picture may be")
        return picture

    def get_fetcher(self, principal: str) -> PageFetcher:
        return RemoteFetcher(self._get_pages, principal)

    def create_result_reader(self, engine: Engine) -> ResultReader:
        return RemoteResultReader(self._get_pages)

    def is_browser_up(self) -> bool | None:
        return None

    def depths(self) -> Sequence[tuple[str, tuple[int, int]]]:
        return ()

    async def close(self) -> None:
        """Do nothing: what a node reads with goes on."""


class RemoteFetcher:
    """A PageFetcher for the principal's plugins. A page is at most messages.MAX_DATA bytes."""

    def __init__(self, get_pages: GetPages, principal: str) -> None:
        self._get_pages = get_pages
        self._principal = principal

    async def fetch(
        self,
        url: str,
        *,
        method: str = "GET",
        headers: Mapping[str, str] | None = None,
        body: bytes = b"",
        limit: int = MAX_BODY,
        timeout: float = 30.0,
        redirects: int = 10,
        lane: str = "",
    ) -> Page:
        node = self._get_pages(self._principal)
        try:
            async with asyncio.timeout(timeout + MARGIN):
                return await node.fetch_page(url, method, dict(headers or {}), body, limit, redirects, lane, timeout)
        except (TimeoutError, PageTimeoutError):  # the node names what its wait for a turn left of the time
            raise PageTimeoutError(f"{shorten_url(url)} did not come in full within {timeout:g} s") from None


class RemoteResultReader:
    """A ResultReader at the node of the principal who searches."""

    def __init__(self, get_pages: GetPages) -> None:
        self._get_pages = get_pages

    async def read(self, query: EngineQuery, job: BuildRequestJob | ReadResultsJob, kind: type[T]) -> T:
        left = query.until - asyncio.get_running_loop().time()
        try:
            outcome = await self._get_pages(query.principal).read_results(job, max(0.0, left - EARLY))
        except ToolError as error:  # a node that is away must not count against the engine, which all people share
            raise EngineFailedError(to_line(error.text, MAX_REASON), is_engine_fault=False) from None
        if outcome.is_begun:
            query.begin()
        if outcome.exceeded:
            raise WorkerLimitError(outcome.exceeded[:MAX_REASON])
        if outcome.refusal:
            raise ToolError(outcome.refusal[:MAX_REASON])
        if outcome.result is None:
            raise TimeoutError
        if not isinstance(outcome.result, kind):
            raise ValueError(f"{kind.__name__} was asked for")
        return outcome.result

"""Perform the requests of one principal for pages and pictures, in this process and its children."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping

from toolgate.server.features.nodes.messages import MAX_DATA
from toolgate.server.features.nodes.node.node import Node
from toolgate.server.features.nodes.pages.methods import JobOutcome, PageMethods
from toolgate.tools.api.context.services import Page
from toolgate.tools.api.errors import ToolError
from toolgate.tools.reading.pages.page_reader import Format, PageDocument, PageRequest, PictureRequest
from toolgate.tools.reading.search.engine import EngineQuery
from toolgate.tools.reading.search.html_engine import BuildRequestJob, BuiltRequest, ReadResults, ReadResultsJob
from toolgate.tools.reading.workers.messages import MAX_RESULT
from toolgate.tools.reading.workers.pictures import FittedPicture
from toolgate.tools.reading.workers.pool import WorkerLimitError

MAX_SECONDS = 600.0  # for one page: more than any call is held
MAX_WAIT = 30.0  # seconds more for a page's scripts, as ReadDocs takes
MAX_REDIRECTS = 20
RESULTS: "dict[type[object], type[BuiltRequest | ReadResults]]" = {
    BuildRequestJob: BuiltRequest,
    ReadResultsJob: ReadResults,
}


class PrincipalPages(PageMethods):
    """PageMethods for `principal`. What a gateway asks for is cut to what this process allows.

    `reserve(size)` waits until the gateway has room for an answer of so many bytes.
    """

    def __init__(self, node: Node, principal: str, reserve: Callable[[int], Awaitable[None]]) -> None:
        self._node = node
        self._pages = node.pages
        self._principal = principal
        self._reserve = reserve

    async def read_page(
        self, url: str, format: Format, wait: float, offset: int, hold: float, seconds: float
    ) -> PageDocument:
        self._node.refuse_start_at_end()
        deadline = asyncio.get_running_loop().time() + min(seconds, MAX_SECONDS)
        wait, offset = min(max(0.0, wait), MAX_WAIT), max(0, offset)
        return await self._pages.reader.read(
            PageRequest(self._principal, url, format, wait, offset, min(hold, MAX_SECONDS), deadline)
        )

    async def fit_picture(
        self, path: str, max_bytes: int, max_pixels: int, seconds: float, *, anywhere: bool
    ) -> FittedPicture:
        self._node.refuse_start_at_end()
        workspace = self._node.find_workspace(self._principal, opens=True)
        limit, pixels, patience = min(max_bytes, MAX_RESULT), max(1, max_pixels), min(seconds, MAX_SECONDS)
        request = PictureRequest(self._principal, path, limit, pixels, anywhere, patience)
        return await self._pages.reader.fit_picture(request, workspace)

    async def fetch_page(
        self,
        url: str,
        method: str,
        headers: Mapping[str, str],
        body: bytes,
        max_bytes: int,
        redirects: int,
        lane: str,
        seconds: float,
    ) -> Page:
        self._node.refuse_start_at_end()
        until = asyncio.get_running_loop().time() + min(seconds, MAX_SECONDS)
        async with self._pages.fetches.slot(self._principal, min(seconds, MAX_SECONDS)):
            page = await self._pages.reader.get_fetcher(self._principal).fetch(
                url,
                method=method,
                headers=headers,
                body=body,
                limit=min(max(0, max_bytes), MAX_DATA),
                timeout=max(0.0, until - asyncio.get_running_loop().time()),
                redirects=min(max(0, redirects), MAX_REDIRECTS),
                lane=self._pages.choose_lane(lane),
            )
            await self._reserve(len(page.body) * 4 // 3)  # base64
            return page

    async def read_results(self, job: BuildRequestJob | ReadResultsJob, seconds: float) -> JobOutcome:
        self._node.refuse_start_at_end()
        reader = self._pages.get_result_reader(job.engine)
        query = EngineQuery(self._pages.engines[job.engine], job.query, self._principal)
        try:
            async with asyncio.timeout(min(seconds, MAX_SECONDS)):
                return JobOutcome(is_begun=True, result=await reader.read(query, job, RESULTS[type(job)]))
        except WorkerLimitError as error:
            return JobOutcome(is_begun=True, exceeded=str(error))
        except ToolError as error:
            return JobOutcome(is_begun=True, refusal=error.text)
        except TimeoutError:
            return JobOutcome(is_begun=not query.is_queued)

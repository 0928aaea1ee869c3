"""Define the methods about pages and pictures that a node offers, and what they return."""

from collections.abc import Mapping
from typing import Protocol

import msgspec

from toolgate.tools.api.context.services import Page
from toolgate.tools.reading.pages.page_reader import Format, PageDocument
from toolgate.tools.reading.search.html_engine import BuildRequestJob, DdgsResult, ReadResultsJob
from toolgate.tools.reading.workers.pictures import FittedPicture


class JobOutcome(msgspec.Struct, frozen=True, omit_defaults=True):
    """What became of a search job: its `result`, or `exceeded`, the text of a WorkerLimitError, or `refusal`, that of a
    ToolError. With none of these its time was over; `is_begun` says whether its turn had come."""

    is_begun: bool
    result: DdgsResult | None = None
    exceeded: str = ""
    refusal: str = ""


class PageMethods(Protocol):
    """What a node reads for one principal. `seconds` is the time for all."""

    async def read_page(
        self, url: str, format: Format, wait: float, offset: int, hold: float, seconds: float
    ) -> PageDocument:
        """Return a page, as PageReader does. `hold` is what its errors name."""
        ...

    async def fit_picture(
        self, path: str, max_bytes: int, max_pixels: int, seconds: float, *, anywhere: bool
    ) -> FittedPicture:
        """Return a picture of the workspace, as PageReader does."""
        ...

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
        """Return a page as it is, as PageFetcher does."""
        ...

    async def read_results(self, job: BuildRequestJob | ReadResultsJob, seconds: float) -> JobOutcome:
        """Return the result of a job about a search engine's page."""
        ...

"""Define who reads pages and pictures for the tools, what it is asked, and what it returns."""

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal, Protocol

import msgspec

from toolgate.tools.api.context.services import PageFetcher
from toolgate.tools.api.errors import ToolError
from toolgate.tools.api.outbound.errors import shorten_url
from toolgate.tools.workspace.workspace import Workspace

if TYPE_CHECKING:  # start-up and memory
    from toolgate.tools.reading.search.engine import Engine
    from toolgate.tools.reading.search.html_engine import ResultReader
    from toolgate.tools.reading.workers.pictures import FittedPicture

Format = Literal["text", "html", "markdown"]

MAX_ANSWER = 99_999  # characters of a call's text
FAULT = 400  # the first HTTP status that is an error


class PageDocument(msgspec.Struct, frozen=True, omit_defaults=True):
    url: str
    title: str
    status: int
    format: Format
    rendered: bool
    truncated: bool
    text: str
    note: str | None = None


class PageRequest(msgspec.Struct, frozen=True):
    """A page to read: extra `wait` and `hold`, the time for all, in seconds; the first character `offset`; and the
    `deadline`, which is `hold` from now on by the loop's clock."""

    principal: str
    url: str
    format: Format
    wait: float
    offset: int
    hold: float
    deadline: float

    @classmethod
    def begin(cls, principal: str, url: str, format: Format, wait: float, offset: int, hold: float) -> "PageRequest":
        """Return the request of a call that begins now."""
        return cls(principal, url, format, wait, offset, hold, asyncio.get_running_loop().time() + hold)

    @property
    def seconds_left(self) -> float:
        return max(0.1, self.deadline - asyncio.get_running_loop().time())


class PictureRequest(msgspec.Struct, frozen=True):
    """A picture file of a principal's workspace: at most `bytes` (before base64) and `pixels` (long edge) are
    returned; `patience` is the seconds to wait for a turn. `anywhere`: it may be outside the workspace."""

    principal: str
    path: str
    bytes: int
    pixels: int
    anywhere: bool
    patience: float


class PageReader(Protocol):
    """Reads pages and pictures for all calls of one event loop."""

    async def read(self, request: PageRequest) -> PageDocument:
        """Return a page. An HTTP error is a document with its status. Raises ToolError."""
        ...

    async def fit_picture(self, request: PictureRequest, workspace: Workspace) -> "FittedPicture":
        """Return a picture, scaled to the limits. Raises ToolError."""
        ...

    def get_fetcher(self, principal: str) -> PageFetcher:
        """Return what fetches pages for the principal's plugins."""
        ...

    def create_result_reader(self, engine: "Engine") -> "ResultReader":
        """Return the reader of a search engine's pages of results."""
        ...

    def is_browser_up(self) -> bool | None:
        """Return whether the browser runs, or None if it is not this process's."""
        ...

    def depths(self) -> Sequence[tuple[str, tuple[int, int]]]:
        """Return the running and the waiting count of each of this process's queues."""
        ...

    async def close(self) -> None: ...


def create_timeout_error(request: PageRequest) -> ToolError:
    """Return the error of a page that did not come in time."""
    return ToolError(f"{shorten_url(request.url)} took longer than {request.hold:g} s to load and convert")

"""Show what each code of an error of a mounted server means: `/mounts/codes#CODE`."""

from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path

from toolgate.server.features.mounts.upstream.errors import CODES
from toolgate.transports.web.http import Request, Response, WebEndpoint
from toolgate.transports.web.page_context import PageContext, Visitor

PATH = "mounts/codes"
TEMPLATE = Path(__file__).with_name("codes.html")


class CodesPage:
    """`identify(request)` returns the visitor, or None for a stranger."""

    def __init__(self, context: PageContext, identify: Callable[[Request], Awaitable[Visitor | None]]) -> None:
        self._context = context
        self._identify = identify

    def routes(self) -> Iterator[tuple[str, WebEndpoint]]:
        """Yield the path with its endpoint."""
        yield f"/{PATH}", WebEndpoint({"GET": self._show, "HEAD": self._show}, self._context.error_page)

    async def _show(self, request: Request) -> Response:
        if await self._identify(request) is None:
            return self._context.send_to_login(PATH)
        return self._context.pages.render_file(TEMPLATE, codes=sorted(CODES.items()))

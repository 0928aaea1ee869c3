"""Serve one path to people who are signed in: a page, and what its form does. A stranger signs in first."""

from collections.abc import Awaitable, Callable

from toolgate.transports.web.http import Request, Response, WebEndpoint, read_query
from toolgate.transports.web.page_context import PageContext, Visitor

Identify = Callable[[Request], Awaitable[Visitor | None]]
Answer = Callable[[Request, Visitor], Awaitable[Response]]
FindRefusal = Callable[[Visitor], Awaitable[Response | None]]


async def admit_all(_: Visitor) -> Response | None:
    return None


class PersonPage:
    """The page at `path`. `identify(request)` returns the visitor, or None for a stranger; `show` and `act` answer a
    visitor whom `find_refusal` does not refuse."""

    def __init__(
        self,
        path: str,
        context: PageContext,
        identify: Identify,
        show: Answer,
        act: Answer,
        find_refusal: FindRefusal = admit_all,
    ) -> None:
        self._path = path
        self._context = context
        self._identify = identify
        self._show = show
        self._act = act
        self._find_refusal = find_refusal

    def route(self) -> tuple[str, WebEndpoint]:
        """Return the path with its endpoint."""
        handlers = {"GET": self._answer_get, "HEAD": self._answer_get, "POST": self._answer_post}
        return f"/{self._path}", WebEndpoint(handlers, self._context.error_page, admit=self._admit)

    async def _admit(self, request: Request) -> Response | None:
        """Return the answer to whoever is refused, whose form is not read; None for others."""
        visitor = await self._identify(request)
        return self._send_to_login(request) if visitor is None else await self._find_refusal(visitor)

    async def _answer_get(self, request: Request) -> Response:
        return await self._answer(request, self._show)

    async def _answer_post(self, request: Request) -> Response:
        return await self._answer(request, self._act)

    async def _answer(self, request: Request, answer: Answer) -> Response:
        visitor = await self._identify(request)
        if visitor is None:
            return self._send_to_login(request)
        refusal = await self._find_refusal(visitor)
        return refusal if refusal is not None else await answer(request, visitor)

    def _send_to_login(self, request: Request) -> Response:
        return self._context.send_to_login(self._path, **read_query(request))

"""Let a person switch single tools of a mounted server off and on for themselves: `/mounts/tools?name=NAME`.

The form names the tools that it has shown, so that nothing is decided of others: what is listed later is on.
"""

from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from pathlib import Path

import msgspec

from toolgate.server.features.mounts.choices.book import ChoiceBook
from toolgate.server.features.mounts.choices.switched_off import NOTHING, UNREADABLE, ChoiceError
from toolgate.server.features.mounts.pages.mounts_part import list_tools
from toolgate.server.features.mounts.pages.person_page import PersonPage
from toolgate.server.features.mounts.parts.views import ServedMount
from toolgate.transports.web.http import Request, Response, WebEndpoint, read_form, read_query, short_hash, with_headers
from toolgate.transports.web.page_context import PageContext, Visitor, format_sentence, principal_of

PATH = "mounts/tools"
TEMPLATE = Path(__file__).with_name("tools.html")
PAGE = 100  # tools
REPEATABLE = frozenset(("shown", "on"))
MAX_FIELDS = 2 * PAGE + 10
KEPT = "This is kept for you alone, and holds for all of your apps."
CHANGED = "The list of tools has changed meanwhile, so nothing was done. Look at it again."
NO_SUCH = "there is no mounted server of this name"


class ShownTool(msgspec.Struct, frozen=True):
    """One tool under its own name. `id` names it in the form: names have what no form carries. `is_listed`: whether
    the server lists it now."""

    id: str
    name: str
    description: str
    is_on: bool
    is_listed: bool


class ToolsPage:
    """`list_mounts()` returns the mounts; `identify(request)` the visitor, or None for a stranger."""

    def __init__(
        self,
        context: PageContext,
        identify: Callable[[Request], Awaitable[Visitor | None]],
        list_mounts: Callable[[], Sequence[ServedMount]],
        choices: ChoiceBook,
    ) -> None:
        self._context = context
        self._identify = identify
        self._list_mounts = list_mounts
        self._choices = choices

    def routes(self) -> Iterator[tuple[str, WebEndpoint]]:
        """Yield the path with its endpoint."""
        yield PersonPage(PATH, self._context, self._identify, self._show, self._act).route()

    async def _show(self, request: Request, visitor: Visitor) -> Response:
        query = read_query(request)
        return self._render(request, visitor, query.get("name", ""), _parse_page(query.get("page", "")))

    async def _act(self, request: Request, visitor: Visitor) -> Response:
        fields = await read_form(request, REPEATABLE, MAX_FIELDS)
        single = dict(fields)
        name, page = single.get("name", ""), _parse_page(single.get("page", ""))
        if (fault := self._context.find_csrf_fault(request, visitor, single, PATH, name)) is not None:
            return self._context.error_page(403, fault)
        shown = {value for field, value in fields if field == "shown"}
        on = {value for field, value in fields if field == "on"}
        principal = principal_of(visitor)
        known = {tool.id: tool.name for tool in self._list_tools(principal, name)}
        if not shown or not shown | on <= known.keys():
            return self._render(request, visitor, name, page, status=409, problem=CHANGED)
        on_names, off_names = [known[id] for id in shown & on], [known[id] for id in shown - on]
        try:
            await self._choices.change(principal, lambda choice: choice.with_tools(name, on_names, off_names))
        except ChoiceError as error:
            return self._render(request, visitor, name, page, status=409, problem=format_sentence(error.text))
        if not self._has_page(principal, name):  # it is not mounted, and nothing of it is off any more
            return self._context.redirect_to("")
        return self._render(request, visitor, name, page, done=KEPT)

    def _is_mounted(self, mount: str) -> bool:
        return any(each.mount.name == mount for each in self._list_mounts())

    def _has_page(self, principal: str, mount: str) -> bool:
        return self._is_mounted(mount) or bool(self._list_tools(principal, mount))

    def _list_tools(self, principal: str, mount: str) -> list[ShownTool]:
        """Return the tools of a mount that a person knows, and those that they have switched off."""
        choice = self._choices.find(principal) or NOTHING
        off, listed = choice.list_tools(mount), self._find_listed(principal, mount)
        return [
            ShownTool(short_hash(name), name, listed.get(name, ""), name not in off, name in listed)
            for name in sorted({*listed, *off})
        ]

    def _find_listed(self, principal: str, mount: str) -> Mapping[str, str]:
        found = (list_tools(each, principal) for each in self._list_mounts() if each.mount.name == mount)
        return next(found, {})

    def _render(
        self,
        request: Request,
        visitor: Visitor,
        name: str,
        page: int,
        *,
        status: int = 200,
        done: str = "",
        problem: str = "",
    ) -> Response:
        principal = principal_of(visitor)
        tools = self._list_tools(principal, name)
        if not self._has_page(principal, name):
            return self._context.error_page(404, NO_SUCH)
        if self._choices.find(principal) is None:
            problem = format_sentence(UNREADABLE)
        csrf, cookies = self._context.csrf_token(request, visitor, PATH, name)
        pages = max(1, -(-len(tools) // PAGE))
        page = min(page, pages)
        answer = self._context.pages.render_file(
            TEMPLATE,
            status,
            mount=name,
            tools=tools[(page - 1) * PAGE : page * PAGE],
            total=len(tools),
            off=sum(not tool.is_on for tool in tools),
            page=page,
            pages=pages,
            is_mounted=self._is_mounted(name),
            is_off=name in (self._choices.find(principal) or NOTHING).mounts,
            csrf=csrf,
            action=self._context.path_of(PATH),
            done=done,
            problem=problem,
        )
        return with_headers(answer, *cookies)


def _parse_page(word: str) -> int:
    """Return the number of a page, from 1 on; of anything else the first."""
    return max(1, int(word)) if word.isascii() and word.isdigit() and len(word) < 6 else 1

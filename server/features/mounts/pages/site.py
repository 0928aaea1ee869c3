"""Make the parts of the first page, and the pages, that show people the mounted servers."""

from collections.abc import Awaitable, Callable, Iterator, Sequence

from toolgate.server.app.host import AppHost
from toolgate.server.features.mounts.choices.book import ChoiceBook
from toolgate.server.features.mounts.pages.codes_page import CodesPage
from toolgate.server.features.mounts.pages.mounts_part import MountsPart
from toolgate.server.features.mounts.pages.tools_page import ToolsPage
from toolgate.server.features.mounts.parts.views import ServedMount
from toolgate.server.features.mounts.sign_in.pages import SignInPages
from toolgate.server.features.mounts.sign_in.service import SignInService
from toolgate.transports.web.http import Request, WebEndpoint
from toolgate.transports.web.page_context import PageContext, Visitor


class MountSite:
    """The pages of one server's mounts, which `list_mounts()` returns."""

    def __init__(
        self,
        host: AppHost,
        list_mounts: Callable[[], Sequence[ServedMount]],
        choices: ChoiceBook,
        sign_ins: SignInService,
    ) -> None:
        self._host = host
        self._list_mounts = list_mounts
        self._choices = choices
        self._sign_ins = sign_ins
        self.mounts_part = MountsPart(list_mounts, choices)

    def routes(
        self, pages: PageContext, identify: Callable[[Request], Awaitable[Visitor | None]]
    ) -> Iterator[tuple[str, WebEndpoint]]:
        """Yield each path with its endpoint. `identify` as in `AddRoutes`."""
        yield from SignInPages(self._sign_ins, pages, identify, self._host.config.name).routes()
        yield from CodesPage(pages, identify).routes()
        yield from ToolsPage(pages, identify, self._list_mounts, self._choices).routes()

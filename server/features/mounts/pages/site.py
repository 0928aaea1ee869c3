"""Make the parts of the first page, and the pages, that show people the mounted servers."""

from collections.abc import Awaitable, Callable, Iterator, Sequence

from toolgate.server.app.host import AppHost
from toolgate.server.features.mounts.choices.book import ChoiceBook
from toolgate.server.features.mounts.pages.administrators import Administrators
from toolgate.server.features.mounts.pages.codes_page import CodesPage
from toolgate.server.features.mounts.pages.mounts_part import MountsPart
from toolgate.server.features.mounts.pages.people_page import PeoplePage
from toolgate.server.features.mounts.pages.people_part import PeoplePart
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
        self._administrators = Administrators(host.config.administrators, host.config.login, host.store())
        self.mounts_part = MountsPart(list_mounts, choices)
        self.people_part = PeoplePart(self._administrators)

    def routes(
        self, pages: PageContext, identify: Callable[[Request], Awaitable[Visitor | None]]
    ) -> Iterator[tuple[str, WebEndpoint]]:
        """Yield each path with its endpoint. `identify` as in `AddRoutes`."""
        yield from SignInPages(self._sign_ins, pages, identify, self._host.config.name).routes()
        yield from CodesPage(pages, identify).routes()
        yield from ToolsPage(pages, identify, self._list_mounts, self._choices).routes()
        yield from PeoplePage(
            pages, identify, self._administrators, self._sign_ins, self._host.store(), self._find_use
        ).routes()

    def _find_use(self, principal: str, mount: str) -> float | None:
        found = (each.mount.find_use(principal) for each in self._list_mounts() if each.mount.name == mount)
        return next(found, None)

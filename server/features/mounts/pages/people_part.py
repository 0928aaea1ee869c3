"""Lead an administrator from the first page to the connections of all people. Others don't see it."""

from collections.abc import Callable, Mapping
from pathlib import Path

from toolgate.server.base.reports.page_part import PartAction, PartRows
from toolgate.server.features.mounts.pages.administrators import Administrators


class PeoplePart:
    """The way to the page."""

    name = "people"
    title = "People’s connections"
    template = Path(__file__).with_name("people_part.html")
    actions: Mapping[str, PartAction] = {}

    def __init__(self, administrators: Administrators) -> None:
        self._administrators = administrators

    async def read(self, principal: str) -> PartRows:
        return PartRows([principal] if await self._administrators.includes(principal) else [], is_work=False)

    def watch(self, principal: str, notify: Callable[[], None]) -> Callable[[], None]:
        return lambda: None

"""Show a person where they have signed in among the mounted servers, for the first page."""

from collections.abc import Callable, Mapping
from pathlib import Path
from urllib.parse import urlsplit

import msgspec

from toolgate.server.features.mounts.sign_in.service import SignInService
from toolgate.server.overview.page_part import ALREADY_ENDED, ActionResult, PartRows

DISCONNECTED = "The connection was ended. Apps can’t use that server for you until you connect it again."


class ShownConnection(msgspec.Struct, frozen=True):
    """One mount where people sign in. `since`: when the person did, in seconds since the epoch, or None; `ended`: why
    they have to do so again, or ""."""

    mount: str
    host: str
    since: float | None = None
    ended: str = ""


class ConnectionsPart:
    """The connections of one server's people."""

    name = "connections"
    title = "Mounted servers where you sign in"
    template = Path(__file__).parents[1] / "pages" / "connections.html"

    def __init__(self, service: SignInService) -> None:
        self._service = service
        self.actions = {"disconnect": self._disconnect}

    async def read(self, principal: str) -> PartRows:
        configs = self._service.configs
        if not configs:
            return PartRows([], is_work=False)
        held = {each.mount: each for each in await self._service.store.list(principal)}
        rows = [
            ShownConnection(
                config.name,
                urlsplit(config.url).netloc,
                held[config.name].made_at if config.name in held else None,
                held[config.name].ended if config.name in held else "",
            )
            for config in configs
        ]
        return PartRows(rows, is_work=False)

    def watch(self, principal: str, notify: Callable[[], None]) -> Callable[[], None]:
        return self._service.watch(principal, notify)

    async def _disconnect(self, principal: str, mount: str, _fields: Mapping[str, str]) -> ActionResult:
        if not await self._service.disconnect(principal, mount):
            return ActionResult(ALREADY_ENDED, 404)
        return ActionResult(DISCONNECTED)

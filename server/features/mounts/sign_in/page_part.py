"""Show a person where they have signed in among the mounted servers, for the first page."""

from collections.abc import Callable, Mapping
from pathlib import Path
from urllib.parse import urlsplit

import msgspec

from toolgate.server.base.reports.page_part import ALREADY_ENDED, ActionResult, PartRows
from toolgate.server.features.mounts.config.mount_config import MountConfig
from toolgate.server.features.mounts.pins.gate import digest_server
from toolgate.server.features.mounts.sign_in.service import SignInService
from toolgate.server.features.mounts.sign_in.store import MountConnection

GONE = "it is not mounted any more"
MOVED = "its mount has another address now"
DISCONNECTED = "The connection was ended. Apps can’t use that server for you until you connect it again."


class ShownConnection(msgspec.Struct, frozen=True):
    """One mount where people sign in. `since`: when the person did, in seconds since the epoch, or None; `ended`: why
    they have to do so again, or ""."""

    mount: str
    host: str
    since: float | None = None
    ended: str = ""
    is_mounted: bool = True


class ConnectionsPart:
    """The connections of one server's people."""

    name = "connections"
    title = "Mounted servers where you sign in"
    template = Path(__file__).parents[1] / "pages" / "connections.html"

    def __init__(self, service: SignInService) -> None:
        self._service = service
        self.actions = {"disconnect": self._disconnect}

    async def read(self, principal: str) -> PartRows:
        configs = {config.name: config for config in self._service.configs}
        if not self._service.may_hold:
            return PartRows([], is_work=False)
        held = {each.mount: each for each in await self._service.store.list(principal)}
        rows = [_show(name, configs.get(name), held.get(name)) for name in sorted({*configs, *held})]
        return PartRows(rows, is_work=False)

    def watch(self, principal: str, notify: Callable[[], None]) -> Callable[[], None]:
        return self._service.watch(principal, notify)

    async def _disconnect(self, principal: str, mount: str, _fields: Mapping[str, str]) -> ActionResult:
        if not await self._service.disconnect(principal, mount):
            return ActionResult(ALREADY_ENDED, 404)
        return ActionResult(DISCONNECTED)


def _show(name: str, config: MountConfig | None, held: MountConnection | None) -> ShownConnection:
    if config is None:
        return ShownConnection(name, "", held.made_at if held is not None else None, GONE, is_mounted=False)
    host = urlsplit(config.url).netloc
    if held is None:
        return ShownConnection(name, host)
    is_moved = held.server != digest_server(config)
    return ShownConnection(name, host, held.made_at, MOVED if is_moved else held.ended)

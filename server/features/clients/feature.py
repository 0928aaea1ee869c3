"""Plug clients into the server: its first page shows what each client reads."""

import contextlib
from collections.abc import AsyncGenerator

from toolgate.server.app.host import AppHost
from toolgate.server.base.reports.client_settings import ClientSettings
from toolgate.server.config.transports import HTTP_TRANSPORTS
from toolgate.server.features.clients import snippets


class ClientsFeature:
    """The clients that the first page names. It is on where HTTP is served."""

    def build(self, host: AppHost) -> None:
        has_newest = HTTP_TRANSPORTS[0] in host.config.transports  # snippets name its path
        host.list_clients.take(lambda _: lambda url: _list_clients(url, has_newest))

    async def connect(self, host: AppHost) -> None:
        pass

    @contextlib.asynccontextmanager
    async def run(self, host: AppHost) -> AsyncGenerator[None]:
        yield


def _list_clients(public_url: str, has_newest: bool) -> ClientSettings:
    return ClientSettings(snippets.list_snippets(public_url) if has_newest else (), snippets.list_unreached(public_url))

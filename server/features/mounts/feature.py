"""Plug mounted servers into the server: their parts, what each client is shown of them, and their end."""

import contextlib
import logging
from collections.abc import AsyncGenerator, Callable
from typing import TYPE_CHECKING, Any

from toolgate.server.app.host import AppHost
from toolgate.server.features.mounts.config.mount_config import MountConfig
from toolgate.server.features.mounts.config.table import read_own_mounts
from toolgate.server.features.mounts.mount.lists import ListStore
from toolgate.server.features.mounts.mount.mount import Mount, Open
from toolgate.server.features.mounts.mount.pool import SessionKey
from toolgate.server.features.mounts.mount.requests import RequestForwarder
from toolgate.server.features.mounts.parts.create import PartMaker
from toolgate.server.features.mounts.parts.views import MountViews, ServedMount
from toolgate.server.features.mounts.upstream.child import start_child
from toolgate.server.features.mounts.upstream.connect import open_program, open_url
from toolgate.server.features.mounts.upstream.errors import MountError
from toolgate.server.features.mounts.upstream.http_client import HttpClient
from toolgate.server.features.mounts.upstream.session import UpstreamSession

if TYPE_CHECKING:
    from collections.abc import Sequence

    from toolgate.tools.api.registry import Part, Registry

FOLDER = "mounts"  # in the state folder
PASSED = ("PATH", "HOME", "LANG", "LC_ALL", "LC_CTYPE", "TZ", "TMPDIR", "USER", "LOGNAME", "SHELL")

log = logging.getLogger("toolgate.mounts")


class MountsFeature:
    """The servers of the config file's `[mounts.NAME]`."""

    def __init__(self) -> None:
        self._served: list[ServedMount] = []
        self._clients: list[HttpClient] = []
        self._views = MountViews(lambda: self._served)
        self._host: AppHost | None = None

    def build(self, host: AppHost) -> None:
        host.part_sources.append(self._list_parts)
        host.views.take(lambda _: self._views)

    async def connect(self, host: AppHost) -> None:
        """Raises UsageError for a table that can't be read."""
        found = read_own_mounts(host.config)
        for fault in found.faults:
            log.warning("mount %s: %s: %s", fault.name, fault.code, fault.text)
        for config in found.mounts:
            self._served.append(self._create_mount(host, config))

    @contextlib.asynccontextmanager
    async def run(self, host: AppHost) -> AsyncGenerator[None]:
        self._host = host
        try:
            yield
        finally:
            self._host = None
            for served in self._served:
                served.forwarder.close()
            for served in self._served:
                await served.mount.close()
            for client in self._clients:
                await client.close()

    def _create_mount(self, host: AppHost, config: MountConfig) -> ServedMount:
        store = ListStore(host.folder() / "cache" / FOLDER, config)
        store.load()
        mount = Mount(config, store, self._create_opener(host, config), self._note_change)
        per = config.per or ("session" if config.url and host.config.is_remote else "person")
        forwarder = RequestForwarder(mount, per)
        return ServedMount(mount, forwarder, PartMaker(config, forwarder), per)

    def _create_opener(self, host: AppHost, config: MountConfig) -> Open:
        if config.url:
            client = HttpClient(config.url, config.headers)
            self._clients.append(client)

            async def open_at_url(key: SessionKey, note: Callable[[str, dict[str, Any]], None]) -> UpstreamSession:
                return await open_url(config, client, key.profile.capabilities, note)

            return open_at_url
        environment = {name: value for name, value in host.config.environment.items() if name in PASSED}

        if host.config.is_remote:  # it would be the server's own process, for all of its callers

            async def refuse(_key: SessionKey, _note: Callable[[str, dict[str, Any]], None]) -> UpstreamSession:
                raise MountError("NEEDS_STDIO", "a command is run over stdio only: over HTTP, mount a URL")

            return refuse

        async def open_child(key: SessionKey, note: Callable[[str, dict[str, Any]], None]) -> UpstreamSession:
            def start() -> Any:
                return start_child(config.command, config.args, config.cwd, {**environment, **config.env})

            return await open_program(config, start, key.profile.capabilities, note)

        return open_child

    def _list_parts(self, registry: "Registry") -> "Sequence[Part]":
        return self._views.list_parts(registry)

    def _note_change(self, mount: Mount) -> None:
        if self._host is not None:
            self._host.served().refresh()

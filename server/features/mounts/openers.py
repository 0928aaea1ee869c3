"""Open conversations with the server of one mount: over a URL, or with a command."""

from collections.abc import Mapping

from toolgate.server.features.mounts.config.mount_config import MountConfig
from toolgate.server.features.mounts.mount.pool import SessionKey
from toolgate.server.features.mounts.upstream.child import ChildProgram, start_child
from toolgate.server.features.mounts.upstream.connect import OnNotice, open_program, open_url
from toolgate.server.features.mounts.upstream.errors import MountError
from toolgate.server.features.mounts.upstream.http_client import HttpClient
from toolgate.server.features.mounts.upstream.session import UpstreamSession

PASSED = ("PATH", "HOME", "LANG", "LC_ALL", "LC_CTYPE", "TZ", "TMPDIR", "USER", "LOGNAME", "SHELL")


class UrlOpener:
    """Conversations share the connections to the URL."""

    def __init__(self, config: MountConfig) -> None:
        self._config = config
        self._client = HttpClient(config.url, config.headers)

    async def open(self, key: SessionKey, on_notice: OnNotice) -> UpstreamSession:
        return await open_url(self._config, self._client, key.profile.capabilities, on_notice)

    async def close(self) -> None:
        await self._client.close()


class ChildOpener:
    """Each conversation has a child of this process, with little of its `environment`."""

    def __init__(self, config: MountConfig, environment: Mapping[str, str]) -> None:
        self._config = config
        self._environment = {name: environment[name] for name in PASSED if name in environment} | dict(config.env)

    async def open(self, key: SessionKey, on_notice: OnNotice) -> UpstreamSession:
        return await open_program(self._config, self._start, key.profile.capabilities, on_notice)

    async def close(self) -> None:
        """The conversations end their programs themselves."""

    async def _start(self) -> ChildProgram:
        config = self._config
        return await start_child(config.command, config.args, config.cwd, self._environment)


class RefusingOpener:
    """Commands are not run where they would be the server's own processes, for all of its callers."""

    async def open(self, key: SessionKey, on_notice: OnNotice) -> UpstreamSession:
        raise MountError("NEEDS_STDIO", "a command is run over stdio only: over HTTP, mount a URL")

    async def close(self) -> None: ...

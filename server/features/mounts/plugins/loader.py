"""Load plugins in processes of their own, and end these with the server."""

import asyncio
from collections.abc import Mapping
from pathlib import Path

from toolgate.server.features.mounts.plugins.plugin import REST, IsolatedPlugin, PluginLostError, ProcessSet
from toolgate.server.features.mounts.plugins.process import PluginNotLoadedError
from toolgate.tools.api.plugins.loader import PluginLoadError


class Isolation:
    """All plugins with their own processes, which get `environment`. `rest`: see REST."""

    def __init__(
        self, environment: Mapping[str, str], *, verbose: bool = False, style: str = "text", rest: float = REST
    ) -> None:
        self.processes = ProcessSet(environment, ("verbose" if verbose else "", style), rest)

    async def load(self, file: Path) -> IsolatedPlugin:
        """Load a plugin in a process of its own. Raises PluginLoadError."""
        plugin = IsolatedPlugin(file, self.processes)
        try:
            await plugin.open()
        except BaseException as error:
            plugin.retire()
            if isinstance(error, PluginLostError) or (isinstance(error, PluginNotLoadedError) and not error.by_plugin):
                raise PluginLoadError(str(error)) from None
            if isinstance(error, Exception):
                raise PluginLoadError("it failed to load in its own process") from _own_trace(error)
            raise
        return plugin

    async def close(self) -> None:
        """End all processes, wait for them, and start no more."""
        self.processes.is_closed = True
        for process in self.processes.running:
            process.kill("the server stopped")
        if self.processes.running:
            await asyncio.wait([process.exited for process in self.processes.running], timeout=2.0)


def _own_trace(error: Exception) -> Exception:
    """Return the error without our frames where its text has the traceback of the plugin's process."""
    return error.with_traceback(None) if isinstance(error, PluginNotLoadedError) else error

"""Offer a tool that has a person sign in at a mounted server who is shown nothing else of it."""

from collections.abc import Callable, Mapping
from typing import Any
from urllib.parse import urlsplit

from toolgate.server.features.mounts.config.mount_config import MountConfig
from toolgate.server.features.mounts.lists.list_store import MountLists
from toolgate.server.features.mounts.mount.requests import RequestForwarder
from toolgate.server.features.mounts.parts.relays import MountedRelay
from toolgate.server.features.mounts.parts.rewriting import UriRewriter
from toolgate.tools.api.context.context import Context
from toolgate.tools.api.tool import ToolAnnotations

CONNECT = "connect"  # what follows the prefix in its name
TITLE = "Connect {}"
DESCRIPTION = (
    "{name} is a server at {host}. Its tools are not listed yet: the person you work for must sign in there first. "
    "Call this when they want something of {name}. They are asked to sign in, and its tools are listed after that."
)
CONNECTED = "{name} is connected, and has {count} for you now. List the tools again if you do not see them."
HINTS = ToolAnnotations(read_only=False, destructive=False, idempotent=True, open_world=True)
NO_ARGUMENTS: Mapping[str, Any] = {"type": "object", "properties": {}, "additionalProperties": False}


class ConnectRelay(MountedRelay):
    """The way to a sign-in. `count_tools(lists)` returns how many tools of these lists are served."""

    def __init__(
        self, config: MountConfig, forwarder: RequestForwarder, shown: str, count_tools: Callable[[MountLists], int]
    ) -> None:
        super().__init__(forwarder, CONNECT, describe_tool(config, shown), UriRewriter(config.name, {}))
        self._count_tools = count_tools

    async def ask(self, params: Mapping[str, Any], context: Context) -> Mapping[str, Any]:
        """Return how many tools the person has once they have signed in."""
        number = self._count_tools(await self._forwarder.connect(context, self.original))
        count = f"{number} tool{'' if number == 1 else 's'}"
        return {"content": [{"type": "text", "text": CONNECTED.format(name=self.mount, count=count)}]}


def describe_tool(config: MountConfig, shown: str) -> dict[str, Any]:
    """Return the tool as clients list it. The host is the operator's word: nobody asked the server."""
    title, host = TITLE.format(config.name), urlsplit(config.url).netloc.rpartition("@")[2]
    return {
        "name": shown,
        "title": title,
        "description": DESCRIPTION.format(name=config.name, host=host),
        "inputSchema": NO_ARGUMENTS,
        "annotations": {
            "title": title,
            "readOnlyHint": HINTS.read_only,
            "destructiveHint": HINTS.destructive,
            "idempotentHint": HINTS.idempotent,
            "openWorldHint": HINTS.open_world,
        },
    }

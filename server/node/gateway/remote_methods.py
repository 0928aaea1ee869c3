"""Request the methods of METHODS at the other end of a link."""

from collections.abc import Mapping
from typing import Any

from toolgate.server.config.node_address import NodeAddress
from toolgate.server.node.gateway.link import NodeLink
from toolgate.server.node.messages import METHODS
from toolgate.tools.api.spans import Attributes, span


async def perform(
    link: NodeLink, principal: str, name: str, words: tuple[Any, ...], keywords: Mapping[str, Any], *, is_call: bool
) -> Any:
    """Return the result of the method `name` for the principal. `is_call` is that of NodeRequest.

    Raises what the node raised, and ToolError.
    """
    method = METHODS.find(name)
    assert method is not None
    with span(name.replace(".", "/"), lambda: _describe_server(link.address)):
        answer = await link.request(principal, name, method.bind(words, keywords), is_call=is_call)
    return method.result.decode(answer)


async def request(link: NodeLink, principal: str, name: str, *words: Any, **keywords: Any) -> Any:
    """Perform a method that belongs to no call."""
    return await perform(link, principal, name, words, keywords, is_call=False)


def _describe_server(address: NodeAddress) -> Attributes:
    """Return the attributes of the node for spans (OpenTelemetry's semantic conventions for RPC)."""
    if address.path is not None:
        return {"rpc.system.name": "toolgate", "server.address": str(address.path), "network.transport": "unix"}
    place: Attributes = {"server.address": address.host, "server.port": address.port, "network.transport": "tcp"}
    return {"rpc.system.name": "toolgate", **place}

"""Request the methods of METHODS at the other end of a link."""

from collections.abc import Mapping
from typing import Any

from toolgate.server.node.link import NodeLink
from toolgate.server.node.messages import METHODS


async def perform(
    link: NodeLink, principal: str, name: str, words: tuple[Any, ...], keywords: Mapping[str, Any], *, is_call: bool
) -> Any:
    """Return the result of the method `name` for the principal. `is_call` is that of NodeRequest.

    Raises what the node raised, and ToolError.
    """
    method = METHODS.find(name)
    assert method is not None
    answer = await link.request(principal, name, method.bind(words, keywords), is_call=is_call)
    return method.result.decode(answer)


async def request(link: NodeLink, principal: str, name: str, *words: Any) -> Any:
    """Perform a method that belongs to no call."""
    return await perform(link, principal, name, words, {}, is_call=False)

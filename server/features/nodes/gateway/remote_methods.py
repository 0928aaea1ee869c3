"""Request the methods of METHODS at the other end of a link."""

import logging
from collections.abc import Mapping
from typing import Any, Self

import msgspec

from toolgate.server.base.rpc.errors import ASKING_ERRORS
from toolgate.server.base.rpc.methods import ApiMethod, add_requests
from toolgate.server.base.text import escape_unprintable
from toolgate.server.features.nodes.address import NodeAddress
from toolgate.server.features.nodes.gateway import node_texts
from toolgate.server.features.nodes.gateway.link import NodeLink
from toolgate.server.features.nodes.messages import ERRORS, METHODS, VERSION, NodeAnswer, NodeMethods, drop_newer
from toolgate.tools.api.context.spans import Attributes, span
from toolgate.tools.api.errors import ToolError

# What a node may raise: only a gateway asks its clients
NODE_ERRORS = ERRORS.names - {each.__name__ for each in ASKING_ERRORS}

MAX_NAME = 40  # characters of an error's name

log = logging.getLogger("toolgate.node")


async def perform(
    link: NodeLink, principal: str, name: str, words: tuple[Any, ...], keywords: Mapping[str, Any], *, is_call: bool
) -> Any:
    """Return the result of the method `name` for the principal. `is_call` is that of NodeRequest.

    Raises what the node raised, and ToolError.
    """
    method = METHODS.find(name)
    assert method is not None
    with span(name.replace(".", "/"), lambda: _describe_server(link.address)):
        arguments = drop_newer(method.bind(words, keywords), VERSION if link.welcome is None else link.welcome.version)
        answer = await link.request(principal, name, arguments, is_call=is_call)
        try:
            return _read_answer(method, answer)
        except (msgspec.MsgspecError, UnicodeDecodeError) as fault:
            why = escape_unprintable(str(fault)[:300])
            log.error("the node at %s sent an invalid answer to %s: %s", link.address, name, why)
            text = f"the node at {link.address} sent an invalid answer: it is not known how far this came"
            raise ToolError(text) from None


def _read_answer(method: ApiMethod, answer: NodeAnswer) -> Any:
    """Return the result. Raises what the node raised, and MsgspecError and others for an answer that is not one."""
    if answer.error is None:
        return node_texts.clean_answer(method.result.decode(answer.result))
    if answer.error.name not in NODE_ERRORS:
        raise msgspec.ValidationError(f"no node raises {answer.error.name[:MAX_NAME]}")
    raise ERRORS.to_error(node_texts.clean_error(answer.error))


async def request(link: NodeLink, principal: str, name: str, *words: Any, **keywords: Any) -> Any:
    """Perform a method that belongs to no call."""
    return await perform(link, principal, name, words, keywords, is_call=False)


@add_requests(METHODS)
class NodeRequests(NodeMethods):
    """What the node of a link offers for a principal, by requests that belong to no call."""

    def __init__(self, link: NodeLink, principal: str) -> None:
        self._link = link
        self._principal = principal

    @classmethod
    def create(cls, link: NodeLink, principal: str) -> Self:
        """Return the methods: see add_requests."""
        return cls(link, principal)

    async def _call(self, name: str, /, *words: Any, **keywords: Any) -> Any:
        return await request(self._link, self._principal, name, *words, **keywords)


def _describe_server(address: NodeAddress) -> Attributes:
    """Return the attributes of the node for spans (OpenTelemetry's semantic conventions for RPC)."""
    if address.path is not None:
        return {"rpc.system.name": "toolgate", "server.address": str(address.path), "network.transport": "unix"}
    place: Attributes = {"server.address": address.host, "server.port": address.port, "network.transport": "tcp"}
    return {"rpc.system.name": "toolgate", **place}

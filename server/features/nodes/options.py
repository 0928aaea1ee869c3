"""Declare the options of a server with nodes, and refuse what is then a node's. Imported at each start: light."""

from typing import TYPE_CHECKING

from toolgate.server.base.errors import UsageError
from toolgate.server.config.option import BOTH, NODE, Option
from toolgate.server.config.types import parse_path

if TYPE_CHECKING:
    from toolgate.server.config.load import Config
    from toolgate.server.features.nodes.address import NodeAddress


def parse_node(word: str) -> "NodeAddress":
    """Return the address of a node. Raises ValueError."""
    from toolgate.server.features.nodes.address import parse_node_address  # start-up: only servers with nodes have one

    return parse_node_address(word)


OPTIONS = {
    "Serving": (
        Option(
            "node",
            "node where people's commands run, files are and pages are read, as unix:/PATH or HOST:PORT (see toolgate "
            "node); without one, this process",
            parse_node,
            (),
            "ADDRESS",
            is_http_only=True,
            item_pattern=r"unix:/[^:]*",
        ),
        Option(
            "node-certificate",
            "file for TLS between server and node, which HOST:PORT needs: this side's key and certificate, and the "
            "authority's (toolgate node certificate makes it)",
            parse_path,
            metavar="FILE",
            is_secret=True,
            is_http_only=True,
            place=BOTH,
        ),
    ),
}
NOTES = {
    "allow-private": "beside --node, all of these but pages: give it to the node for pages",
    "refuse-networks": "beside --node, all of these but pages and commands",
}


def check_node_options(config: "Config") -> None:
    """Raise UsageError for options that are a node's, and for a node that is given twice."""
    from toolgate.server.config.options import OPTIONS as ALL  # this module is part of them
    from toolgate.tools.workspace import limits  # start-up, as above

    for option in ALL:
        if option.place == NODE and config.is_given(option.key):
            raise UsageError(f"{option.flag} is the node's: give it to toolgate node, not beside --node")
    for word in config.limit:
        if not limits.is_of_calls(word):
            raise UsageError(f"--limit {word} is the node's: give it to toolgate node, not beside --node")
    if len(set(config.node)) < len(config.node):
        twice = next(address for address in config.node if config.node.count(address) > 1)
        raise UsageError(f"--node {twice} is given twice: give each node once")

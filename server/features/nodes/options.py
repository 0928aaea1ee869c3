"""Refuse options where they have no effect, since they are the node's."""

from toolgate.server.config.load import Config
from toolgate.server.config.option import NODE
from toolgate.server.config.options import OPTIONS
from toolgate.server.protocol.errors import UsageError
from toolgate.tools.workspace import limits


def check_node_options(config: Config) -> None:
    """Raise UsageError for options that are a node's, and for a node that is given twice."""
    for option in OPTIONS:
        if option.place == NODE and config.is_given(option.key):
            raise UsageError(f"{option.flag} is the node's: give it to toolgate node, not beside --node")
    for word in config.limit:
        if not limits.is_of_calls(word):
            raise UsageError(f"--limit {word} is the node's: give it to toolgate node, not beside --node")
    if len(set(config.node)) < len(config.node):
        twice = next(address for address in config.node if config.node.count(address) > 1)
        raise UsageError(f"--node {twice} is given twice: give each node once")

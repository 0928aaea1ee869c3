"""Say which options are a node's, and refuse them where they have no effect."""

from toolgate.server.config.load import Config
from toolgate.server.protocol.errors import UsageError
from toolgate.tools.workspace import limits

NODE_OPTIONS = (
    *("workspace", "idle_workspaces", "idle_after", "gone_workspaces", "gone_after"),
    *("sandbox", "sandbox_network", "sandbox_paths", "sandbox_uids", "browser"),
)


def check_node_options(config: Config) -> None:
    """Raise UsageError for options that are a node's, and for a node that is given twice."""
    for key in NODE_OPTIONS:
        if config.is_given(key):
            raise UsageError(f"--{key.replace('_', '-')} is the node's: give it to toolgate node, not beside --node")
    for word in config.limit:
        if not _is_of_calls(word):
            raise UsageError(f"--limit {word} is the node's: give it to toolgate node, not beside --node")
    if len(set(config.node)) < len(config.node):
        twice = next(address for address in config.node if config.node.count(address) > 1)
        raise UsageError(f"--node {twice} is given twice: give each node once")


def check_server_options(config: Config) -> None:
    """Raise UsageError for options of a node that are its servers'."""
    for word in filter(_is_of_calls, config.limit):
        raise UsageError(f"--limit {word} is the server's: give it to the server with --node, not to toolgate node")


def _is_of_calls(limit: str) -> bool:
    return limit.partition("=")[0].partition(":")[0] == limits.CALLS

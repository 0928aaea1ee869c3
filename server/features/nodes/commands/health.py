"""Greet a node, for container engines and scripts (`toolgate health --node ADDRESS`)."""

from toolgate.server.base.errors import UsageError
from toolgate.server.cli.commands.health import DONE, FAULT, TIMEOUT
from toolgate.server.config.load import Config
from toolgate.server.features.nodes import connect
from toolgate.server.features.nodes.address import parse_node_address
from toolgate.server.features.nodes.gateway import link


def greet_node(config: Config, *, url: str | None, node: str) -> int:
    """Print "ready", or why no node answers at the address; 0 if one is ready."""
    if url is not None:
        raise UsageError("--url has no effect with --node: give one of them")
    status = _greet(config, node)
    print(status)
    return DONE if status == "ready" else FAULT


def _greet(config: Config, node: str) -> str:
    try:
        address = parse_node_address(node)
        link.greet(address, TIMEOUT, connect.read_certificate(config, "--node", address))
    except ValueError as error:
        raise UsageError(f"--node: {error}") from None
    except link.NodeUnreachableError as error:
        return f"no node answers at {node}: {error}"
    return "ready"

"""Make the certificates for a node at HOST:PORT and for its servers (`toolgate node certificate`)."""

import datetime
import socket
import sys
from collections.abc import Sequence
from pathlib import Path

from toolgate.server.app import build
from toolgate.server.base.errors import UsageError
from toolgate.server.base.text import describe_os_error
from toolgate.server.cli.commands.store_command import refuse_other_owner
from toolgate.server.config.load import Config
from toolgate.server.config.types import parse_listen_host, parse_path
from toolgate.server.features.nodes.address import NodeAddress

DONE = 0
PORT = 7443  # in the lines that are printed
LOCAL = ("localhost", "127.0.0.1", "::1")
OWN = ("gateway", "node-authority")  # names of the other files


def make_certificates(options: Config, *, hosts: Sequence[str], folder: str | None, replace: bool) -> int:
    """Write the authority's file if it is missing, the node's, and the gateway's unless it is there."""
    from toolgate.server.features.nodes.tls import authority  # start-up: only this command makes certificates
    from toolgate.server.features.nodes.tls.errors import CertificateError

    names = [_parse_host(host) for host in hosts]
    file = f"{names[0].replace(':', '-')}.pem" if names else "node.pem"
    if file.removesuffix(".pem") in OWN:
        raise UsageError(f"node certificate: {file} is another file's name: put another name of the host first")
    names = names or list(dict.fromkeys((_own_name(), *LOCAL)))
    if folder is None:
        refuse_other_owner(options)
    place = build.state_folder(options) / "keys" if folder is None else _parse_folder(folder)
    node, gateway = place / file, place / authority.GATEWAY
    if node.exists() and not replace:
        raise UsageError(f"node certificate: {node} is there: --replace makes another in its place")
    try:
        signer = authority.Authority(place, datetime.datetime.now(datetime.UTC))
        authority.write_file(node, signer.issue_node(names), replace=replace)
        is_new = authority.write_file(gateway, signer.issue_gateway(), replace=replace)
    except CertificateError as error:
        raise UsageError(f"node certificate: {error}") from None
    except OSError as error:
        raise UsageError(f"node certificate: {place}: {describe_os_error(error)}") from None
    kept = "" if is_new else " (as it was)"
    print(f"{node}: the node's, for {', '.join(names)}. Copy it there, to a file that only its user can read.")
    print(f"{gateway}: the servers'{kept}. A secret: who has it acts for everybody at the node.")
    print(f"{signer.file}: the authority. It makes certificates for further nodes, and no node needs it.")
    address = NodeAddress(host=names[0], port=PORT)
    print(f"\nThen, on {names[0]} and on the machine of the server:\n")
    print(f"toolgate node --listen {address} --node-certificate {file}")
    print(f"toolgate -t --node {address} --node-certificate {gateway}")
    sys.stdout.flush()
    return DONE


def _parse_host(word: str) -> str:
    try:
        return parse_listen_host(word)
    except ValueError as error:
        raise UsageError(f"node certificate: HOST {error}") from None


def _parse_folder(word: str) -> Path:
    try:
        return parse_path(word)
    except ValueError as error:
        raise UsageError(f"--folder: {error}") from None


def _own_name() -> str:
    try:
        return parse_listen_host(socket.gethostname())
    except ValueError:
        return "localhost"

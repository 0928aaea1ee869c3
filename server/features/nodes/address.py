"""Name a node by its unix socket, or by its host and port."""

import os
import re
import sys
from pathlib import Path

import msgspec

from toolgate.server.config.types import parse_listen_host, parse_path

MAX_SOCKET = 107 if sys.platform == "linux" else 103  # bytes of a socket's path: sun_path of unix(7)
FORMS = "must be unix:/PATH, a socket on this machine, or HOST:PORT, such as node.example.com:7443"


class NodeAddress(msgspec.Struct, frozen=True):
    """The `path` of a unix socket, or a `host` and `port`. An IPv6 address has brackets in the text only."""

    path: Path | None = None
    host: str = ""
    port: int = 0

    def __str__(self) -> str:
        if self.path is not None:
            return f"unix:{self.path}"
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def parse_node_address(word: str) -> NodeAddress:
    """Return the address from unix:/PATH or HOST:PORT. Raises ValueError."""
    if word.startswith("unix:/"):
        return name_socket(parse_path(word.removeprefix("unix:")))
    host, colon, port = word.rpartition(":")
    if not colon or host in ("", "unix") or "/" in host or (":" in host and not host.startswith("[")):
        raise ValueError(f"{FORMS}, not {word!r}")
    if not re.fullmatch("[0-9]{1,5}", port) or not 0 < int(port) < 65_536:
        raise ValueError(f"must end in a port from 1 to 65535, not {word!r}")
    return NodeAddress(host=parse_listen_host(host), port=int(port))


def name_socket(path: Path) -> NodeAddress:
    """Return the address of a unix socket. Raises ValueError for a path that no socket can have."""
    size = len(os.fsencode(path))
    if size > MAX_SOCKET:
        raise ValueError(f"{path} has {size} bytes, and a socket's path at most {MAX_SOCKET}: choose a shorter one")
    return NodeAddress(path)

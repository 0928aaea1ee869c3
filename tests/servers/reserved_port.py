"""A port of loopback for a server that can't choose one itself, or that a test stops and starts again: nobody else gets
it before, between or behind.

The kernel gives a bound port to no connection and no other server, but lets one that sets SO_REUSEADDR listen there. A
port that is found free and let go is somebody else's a moment later.
"""

import contextlib
import socket
from collections.abc import Iterator


@contextlib.contextmanager
def reserved_port() -> Iterator[int]:
    """Yield a free port of 127.0.0.1, and keep it until the end."""
    with _bound("127.0.0.1") as keeper:
        yield keeper.getsockname()[1]


def kept_port(host: str = "127.0.0.1") -> int:
    """Return a free port of `host`, which is kept until this process ends. As long as nobody listens there, connections
    are refused."""
    keeper = _bound(host)
    port = int(keeper.getsockname()[1])
    keeper.detach()  # open until the process ends
    return port


def kept_ports(count: int) -> list[int]:
    """Return free ports of 127.0.0.1, which are kept until this process ends."""
    return [kept_port() for _ in range(count)]


def _bound(host: str) -> socket.socket:
    family, kind, protocol, _, address = socket.getaddrinfo(host, 0, type=socket.SOCK_STREAM)[0]
    keeper = socket.socket(family, kind, protocol)
    keeper.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    keeper.bind(address)
    return keeper

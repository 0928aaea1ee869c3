"""Keep a port of loopback for a server that a test stops and starts again: while it is down, nobody else gets the port.

The kernel gives a bound port to no connection and no other server, but lets one that sets SO_REUSEADDR listen there.
"""

import contextlib
import socket
from collections.abc import Iterator


@contextlib.contextmanager
def reserved_port() -> Iterator[int]:
    """Yield a free port of 127.0.0.1, and keep it until the end."""
    with socket.socket() as keeper:
        keeper.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        keeper.bind(("127.0.0.1", 0))
        yield keeper.getsockname()[1]

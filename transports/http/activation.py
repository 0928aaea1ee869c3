"""Take over the listening socket of a service manager, so that clients can wait while the server restarts.

It must be the socket of `--host` and `--port`: the checks of who may connect used those.
Source: sd_listen_fds(3), "LISTEN_PID", "LISTEN_FDS".
"""

import ipaddress
import os
import socket
from collections.abc import Mapping

from toolgate.server.base.errors import UsageError

FIRST = 3  # the passed descriptor


def take_socket(handed: Mapping[str, str], host: str, port: int) -> socket.socket | None:
    """Return the socket that `handed`, from the environment, describes; None if none was passed to this process. Raises
    UsageError, and OSError if `host` can't be resolved."""
    process, count = handed.get("LISTEN_PID", ""), handed.get("LISTEN_FDS", "")
    if not process and not count:
        return None
    if not (_is_number(process) and _is_number(count)):
        raise UsageError(f"LISTEN_PID and LISTEN_FDS must be numbers, not {process[:20]!r} and {count[:20]!r}")
    if int(process) != os.getpid() or int(count) == 0:
        return None
    if int(count) != 1:
        raise UsageError(f"LISTEN_FDS: {count} sockets were handed over: use one ListenStream=")
    taken = _open_listening_socket()
    try:
        _check_address(taken, host, port)
    except BaseException:
        taken.close()
        raise
    taken.setblocking(False)
    return taken


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) < 10


def _open_listening_socket() -> socket.socket:
    try:
        os.set_inheritable(FIRST, False)
        taken = socket.socket(fileno=FIRST)
    except OSError as error:
        raise UsageError(f"LISTEN_FDS: descriptor {FIRST} is no socket: {error.strerror}") from None
    is_tcp = taken.family in (socket.AF_INET, socket.AF_INET6) and taken.type == socket.SOCK_STREAM
    if not is_tcp or not taken.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
        taken.close()
        raise UsageError("LISTEN_FDS: descriptor 3 is no listening TCP socket: use ListenStream= and Accept=no")
    return taken


def _check_address(taken: socket.socket, host: str, port: int) -> None:
    there, at = taken.getsockname()[:2]
    wanted = {found[4][0] for found in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)}
    is_same = there in wanted or (_is_any(there) and any(_is_any(str(one)) for one in wanted))
    if not is_same or port not in (0, at):
        raise UsageError(f"--host, --port: {host}:{port} is not {there}:{at}, the socket that was handed over")


def _is_any(address: str) -> bool:
    """Return whether the address means all addresses of the machine."""
    return ipaddress.ip_address(address.partition("%")[0]).is_unspecified

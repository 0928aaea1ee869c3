"""Tell the service manager that the server accepts requests (sd_notify(3)): `systemctl start` waits for it."""

import logging
import socket
from collections.abc import Mapping

from toolgate.server.base.text import describe_os_error, escape_unprintable
from toolgate.server.config.load import NOTIFY_SOCKET

log = logging.getLogger("toolgate.http")


def notify_ready(socket_variables: Mapping[str, str], public_url: str) -> None:
    """Send READY=1 to the service manager, if the environment has NOTIFY_SOCKET.

    `systemctl status` shows the URL to every user of the machine: it must not hold the pairing code.
    """
    address = socket_variables.get(NOTIFY_SOCKET, "")
    if not address:
        return
    message = f"READY=1\nSTATUS=serving {escape_unprintable(public_url)}"
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as sender:
            sender.setblocking(False)
            # "@" names an abstract socket
            sender.connect(f"\0{address[1:]}" if address.startswith("@") else address)
            sender.send(message.encode())
    except (OSError, ValueError) as error:  # the service manager ends a service that never becomes ready
        reason = describe_os_error(error) if isinstance(error, OSError) else str(error)
        log.warning("%s: the service manager can't be told that the server is ready: %s", NOTIFY_SOCKET, reason)

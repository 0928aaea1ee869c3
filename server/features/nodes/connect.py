"""Open connections to nodes, and notice on either side that the other machine is gone."""

import asyncio
import contextlib
import socket
import time
from typing import TYPE_CHECKING

from toolgate.server.base.errors import UsageError
from toolgate.server.base.text import describe_os_error
from toolgate.server.config.load import Config
from toolgate.server.features.nodes.address import NodeAddress
from toolgate.server.features.nodes.tls.errors import CertificateError

if TYPE_CHECKING:
    from toolgate.server.features.nodes.tls.certificate_file import CertificateFile

CLOSE_WITHIN = 1.0  # seconds for TLS to end a connection in good order
# A machine that is gone is noticed within 6 s (tcp(7)). Less would end connections to a process that pauses: the last
# row also counts the time that it does not read.
KEEPALIVE = {"TCP_KEEPIDLE": 2, "TCP_KEEPALIVE": 2, "TCP_KEEPINTVL": 1, "TCP_KEEPCNT": 4, "TCP_USER_TIMEOUT": 6_000}


def read_certificate(config: Config, option: str, *addresses: NodeAddress) -> "CertificateFile | None":
    """Return the certificate of --node-certificate, which an address with a port needs. `option` names the addresses.

    Raises UsageError.
    """
    file, is_node = config.node_certificate, option == "--listen"
    remote = next((address for address in addresses if address.path is None), None)
    if remote is None:
        if file is not None:
            raise UsageError(f"--node-certificate is for {option} HOST:PORT: a socket on this machine needs none")
        return None
    if file is None:
        host = remote.host if remote.host.strip("0.:") else "HOST"  # 0.0.0.0 and :: are nobody's address
        raise UsageError(
            f"{option}: {remote} needs --node-certificate FILE: toolgate node certificate {host} makes the files"
        )
    from toolgate.server.features.nodes.tls import certificate_file  # start-up: most nodes are on this machine

    try:
        return certificate_file.CertificateFile(file, certificate_file.NODE if is_node else certificate_file.GATEWAY)
    except CertificateError as error:
        raise UsageError(f"--node-certificate: {error}") from None


class CountingReader(asyncio.StreamReader):
    """Counts the bytes that were `received`, those of a message that is not whole yet too."""

    received = 0

    def feed_data(self, data: bytes | bytearray | memoryview) -> None:  # type: ignore[override]
        self.received += len(data)
        super().feed_data(data)


async def open_connection(
    address: NodeAddress, certificate: "CertificateFile | None", timeout: float
) -> tuple[CountingReader, asyncio.StreamWriter]:
    """Return a connection to the node. Raises OSError, and CertificateError for a node's that is not one."""
    loop = asyncio.get_running_loop()
    reader = CountingReader(loop=loop)
    protocol = asyncio.StreamReaderProtocol(reader, loop=loop)
    if address.path is not None:
        line, _ = await loop.create_unix_connection(lambda: protocol, str(address.path))
        return reader, asyncio.StreamWriter(line, protocol, reader, loop)
    assert certificate is not None
    transport, _ = await loop.create_connection(
        lambda: protocol,
        address.host,
        address.port,
        ssl=certificate.get_context(),
        server_hostname=address.host,
        ssl_handshake_timeout=timeout,
        ssl_shutdown_timeout=CLOSE_WITHIN,
    )
    writer = asyncio.StreamWriter(transport, protocol, reader, loop)
    watch_peer(writer.get_extra_info("socket"))
    certificate.check_peer(writer.get_extra_info("ssl_object").getpeercert(binary_form=True))
    return reader, writer


def open_socket(address: NodeAddress, certificate: "CertificateFile | None", timeout: float) -> socket.socket:
    """Return a blocking connection to the node. Raises as `open_connection`."""
    if address.path is not None:
        line = socket.socket(socket.AF_UNIX)
        line.settimeout(timeout)
        try:
            line.connect(str(address.path))
        except OSError:
            line.close()
            raise
        return line
    assert certificate is not None
    line = socket.create_connection((address.host, address.port), timeout)
    try:
        secure = certificate.get_context().wrap_socket(line, server_hostname=address.host)
        certificate.check_peer(secure.getpeercert(binary_form=True))
    except BaseException:
        line.close()
        raise
    return secure


def receive(line: socket.socket, size: int, until: float) -> bytes:
    """Return so many bytes, before `until` by the monotonic clock. Raises OSError, and EOFError at the end."""
    data = b""
    while len(data) < size:
        line.settimeout(max(0.001, until - time.monotonic()))
        piece = line.recv(size - len(data))
        if not piece:
            raise EOFError
        data += piece
    return data


def watch_peer(connection: socket.socket) -> None:
    """Have the kernel end the connection when the other machine does not answer any more."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in KEEPALIVE.items():
        if hasattr(socket, name):
            with contextlib.suppress(OSError):
                connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)


def describe_failure(error: Exception, address: NodeAddress) -> str:
    """Return why there is no connection to the node at `address`."""
    if isinstance(error, TimeoutError):
        return "no answer in time"
    if isinstance(error, EOFError):
        at = ", and its log says whether it refuses this server's certificate" if address.path is None else ""
        return f"it closed the connection{at}"
    if isinstance(error, OSError) and address.path is None:
        import ssl  # start-up, as above

        from toolgate.server.features.nodes.tls.failures import describe_node_failure

        if isinstance(error, ssl.SSLError):
            return describe_node_failure(error, address)
    return describe_os_error(error) if isinstance(error, OSError) else str(error)

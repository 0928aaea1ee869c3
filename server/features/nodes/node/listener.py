"""Accept gateways at a node's address. With TLS a connection costs little until its certificate is known."""

import asyncio
import contextlib
import errno
import logging
import os
import socket
import stat
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TYPE_CHECKING

from toolgate.server.base.errors import UsageError
from toolgate.server.base.text import describe_os_error
from toolgate.server.features.nodes.address import NodeAddress
from toolgate.server.features.nodes.connect import CLOSE_WITHIN, watch_peer
from toolgate.server.features.nodes.tls.errors import CertificateError

if TYPE_CHECKING:
    from toolgate.server.features.nodes.tls.certificate_file import CertificateFile

BACKLOG = 64
HANDSHAKE = 5.0  # seconds
MAX_HANDSHAKES = 64  # at once; one more ends the oldest, so that strangers can't keep gateways out
REST = 0.5  # seconds until the next try when no connection can be accepted
QUIET = 60.0  # seconds between two lines about refused connections

Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]

log = logging.getLogger("toolgate.node")


class GatewayListener:
    """Accepts connections on the listening socket `line` and has them served. `certificate` is None without TLS."""

    def __init__(self, line: socket.socket, serve: Serve, certificate: "CertificateFile | None") -> None:
        self._line = line
        self._serve = serve
        self._certificate = certificate
        self._handshakes: dict[asyncio.Task[None], None] = {}  # the oldest first
        self._served: set[asyncio.Task[None]] = set()
        self._refused = 0
        self._said_at = -QUIET

    async def run(self) -> None:
        """Accept connections until cancelled."""
        loop = asyncio.get_running_loop()
        self._line.setblocking(False)
        try:
            while True:
                try:
                    connection, _ = await loop.sock_accept(self._line)
                except OSError as error:
                    if error.errno != errno.ECONNABORTED:  # probably out of descriptors: an immediate retry would spin
                        log.warning("cannot accept a connection: %s", error.strerror)
                        await asyncio.sleep(REST)
                    continue
                self._start(connection)
                await asyncio.sleep(0)  # a full backlog would be accepted without a turn for others
        finally:
            self._line.close()

    async def close(self) -> None:
        """End all connections."""
        for task in list(self._served):
            task.cancel()
        await asyncio.gather(*self._served, return_exceptions=True)

    def _start(self, connection: socket.socket) -> None:
        if len(self._handshakes) >= MAX_HANDSHAKES:
            oldest = next(iter(self._handshakes))
            del self._handshakes[oldest]
            oldest.cancel()
        task = asyncio.get_running_loop().create_task(self._admit(connection))
        self._handshakes[task] = None
        self._served.add(task)
        task.add_done_callback(self._forget)

    def _forget(self, task: "asyncio.Task[None]") -> None:
        self._handshakes.pop(task, None)
        self._served.discard(task)
        if not task.cancelled() and (fault := task.exception()) is not None:
            log.error("a connection failed", exc_info=fault)

    async def _admit(self, connection: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        reader = asyncio.StreamReader(loop=loop)
        protocol = asyncio.StreamReaderProtocol(reader, loop=loop)
        task = asyncio.current_task()
        try:
            context = None if self._certificate is None else self._certificate.get_context()
            transport, _ = await loop.connect_accepted_socket(
                lambda: protocol,
                connection,
                ssl=context,
                ssl_handshake_timeout=None if context is None else HANDSHAKE,
                ssl_shutdown_timeout=None if context is None else CLOSE_WITHIN,
            )
        except OSError as error:
            self._refuse(error)
            return
        finally:
            assert task is not None
            self._handshakes.pop(task, None)
        writer = asyncio.StreamWriter(transport, protocol, reader, loop)
        if self._certificate is not None:
            watch_peer(writer.get_extra_info("socket"))
            try:
                self._certificate.check_peer(writer.get_extra_info("ssl_object").getpeercert(binary_form=True))
            except CertificateError as error:
                writer.transport.abort()
                self._refuse(error)
                return
        await self._serve(reader, writer)

    def _refuse(self, error: Exception) -> None:
        """Log that a connection is refused: the first one at once, and then a count, since anybody may connect."""
        self._refused += 1
        now = asyncio.get_running_loop().time()
        if now - self._said_at >= QUIET:
            from toolgate.server.features.nodes.tls.failures import describe_gateway_failure  # loaded already

            why = describe_gateway_failure(error)
            log.warning("connections refused since the last such line: %d; now: %s", self._refused, why)
            self._said_at, self._refused = now, 0


class SocketFile:
    """The file at `path` of a unix socket that listens."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._made = path.lstat()

    def remove(self) -> None:
        """Remove the file, unless it is gone or another process's by now. Never raises."""
        with contextlib.suppress(OSError):
            if os.path.samestat(self.path.lstat(), self._made):
                self.path.unlink()


def open_listener(address: NodeAddress) -> socket.socket:
    """Return a listening socket at the address. Raises UsageError."""
    if address.path is not None:
        line = _bind_path(address.path)
        line.listen(BACKLOG)
        return line
    try:
        found = socket.getaddrinfo(address.host, address.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        family, _, _, _, name = found[0]
        return socket.create_server(name[:2], family=family, backlog=BACKLOG)
    except socket.gaierror as error:
        raise UsageError(f"--listen: {address}: {describe_os_error(error)}") from None
    except OSError as error:  # its text has the address again
        raise UsageError(f"--listen: {address}: {os.strerror(error.errno or 0).lower()}") from None


def _bind_path(path: Path) -> socket.socket:
    """Return a socket that only this user and root may connect to. A socket that nobody listens on is replaced."""
    line = socket.socket(socket.AF_UNIX)
    try:
        if path.is_symlink() or path.exists():
            if not stat.S_ISSOCK(path.lstat().st_mode):
                raise UsageError(f"--listen: {path} is there, and is not a socket: name another path")
            with socket.socket(socket.AF_UNIX) as other:
                if other.connect_ex(str(path)) == 0:
                    raise UsageError(f"--listen: another process listens on {path}: stop it, or name another socket")
            path.unlink()
        before = os.umask(0o177)
        try:
            line.bind(str(path))
        finally:
            os.umask(before)
    except OSError as error:
        line.close()
        raise UsageError(f"--listen: {path}: {describe_os_error(error)}") from None
    except UsageError:
        line.close()
        raise
    return line

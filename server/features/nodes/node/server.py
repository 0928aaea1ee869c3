"""Serve gateways: greet them, and pass their messages to their sessions."""

import asyncio
import logging
import os
import secrets
import socket
import struct
import time
from functools import partial
from pathlib import Path
from typing import Any

from toolgate.server.base.rpc import frames
from toolgate.server.base.text import escape_unprintable
from toolgate.server.base.version import VERSION as RELEASE
from toolgate.server.features.nodes import messages
from toolgate.server.features.nodes.messages import Hello, Leave, Ping, Pong, Refusal, Welcome
from toolgate.server.features.nodes.node.databases import DATABASE_ID
from toolgate.server.features.nodes.node.gateway_session import GatewaySession
from toolgate.server.features.nodes.node.node import Node

GREETING = 5.0  # seconds until Hello must have come
MAX_GREETING = 4 * 2**10  # bytes of Hello
MAX_CONNECTIONS = 64
MAX_SESSIONS = 128  # gateways with a connection, and those that have just lost it
MAX_ARRIVING = 8  # large frames that have not come whole, of all gateways: half a GiB
ARRIVAL_TIME = 60.0  # seconds for each: the largest file takes that at 400 KB/s
MAX_UNREAD = 2**20  # bytes that a gateway has not read, until when its next message is taken
KEEP_WITHIN = 2.0  # seconds that the end waits for a slow disk
CREDENTIALS = struct.Struct("3i")  # pid, uid, gid: struct ucred of unix(7)

log = logging.getLogger("toolgate.node")


class NodeServer:
    """Serves the workspaces of `node`, called `name`, to gateways. `root` is the one shared workspace, or None."""

    def __init__(self, node: Node, state: Path, root: Path | None, name: str) -> None:
        self._node = node
        node.ends.list_gateways = lambda: self._sessions.values()
        node.before_call = self._release_commands
        node.is_away = lambda name: name not in self._sessions or not self._sessions[name].is_attached
        node.moves.is_calling = lambda name: any(session.is_calling(name) for session in self._sessions.values())
        self._sessions: dict[str, GatewaySession] = {}
        self._epoch = secrets.token_hex(16)
        self._state = Path(os.path.realpath(state))
        self._root = None if root is None else os.path.realpath(root)
        self._name = name
        self._connections: set[asyncio.StreamWriter] = set()
        self._arrivals = frames.FrameArrivals(MAX_ARRIVING, ARRIVAL_TIME)
        self._keeping: set[asyncio.Task[None]] = set()

    async def _release_commands(self, principal: str) -> None:
        """Make the principal's commands of gateways that are away background tasks, as it calls through another one."""
        for session in list(self._sessions.values()):
            if not session.is_attached:
                await session.release_commands(principal)

    async def serve(self, connection: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve one connection until it ends."""
        peer = find_peer_uid(writer.get_extra_info("socket"))  # with TLS the certificate has named the peer
        if peer not in (None, 0, os.geteuid()) or len(self._connections) >= MAX_CONNECTIONS:
            log.warning("a connection of user %s is refused", peer)
            writer.close()
            return
        self._connections.add(writer)
        try:
            session = await self._greet(connection, writer)
            if session is not None:
                try:
                    await self._read(connection, writer, session)
                finally:
                    session.detach(writer)
                    if not session.is_attached:
                        self._node.ends.send_again()
        except (EOFError, OSError):
            pass
        except frames.MalformedFrameError as fault:
            log.warning("a gateway broke the rules: it sent %s", escape_unprintable(str(fault)))
            frames.write(writer, frames.encode_frame(Refusal(f"it sent {fault}")))
        finally:
            self._connections.discard(writer)
            writer.close()

    async def _greet(self, connection: asyncio.StreamReader, writer: asyncio.StreamWriter) -> GatewaySession | None:
        """Return the session of the gateway; None if it only asked for the welcome, or speaks otherwise."""
        async with asyncio.timeout(GREETING):
            hello = await frames.read_frame(connection, messages.FROM_GATEWAY, MAX_GREETING)
        if not isinstance(hello, Hello):
            raise frames.MalformedFrameError("no hello")
        if hello.database and not DATABASE_ID.fullmatch(hello.database):
            raise frames.MalformedFrameError("no id of a database")
        version = messages.choose_version(hello.version)
        if version is None:
            release = escape_unprintable(hello.release[:40])
            text = f"this node is Toolgate {RELEASE}, the gateway is {release}: upgrade the older of the two"
            frames.write(writer, frames.encode_frame(Refusal(text)))
            return None
        session = self._sessions.get(hello.gateway)
        if session is None and len(self._sessions) >= MAX_SESSIONS:
            frames.write(writer, frames.encode_frame(Refusal(f"it serves {MAX_SESSIONS} gateways, the most allowed")))
            return None
        frames.write(writer, frames.encode_frame(self._welcome(version, knows_gateway=session is not None)))
        if not hello.gateway:
            return None
        if session is None:
            session = self._sessions[hello.gateway] = GatewaySession(
                self._node, partial(self._sessions.pop, hello.gateway, None), hello.database, hello.gateway
            )
            self._keep_databases()
        session.attach(writer)
        return session

    def _keep_databases(self) -> None:
        task = asyncio.get_running_loop().create_task(self._node.gone.keep())
        self._keeping.add(task)
        task.add_done_callback(self._keeping.discard)

    async def _read(
        self, connection: asyncio.StreamReader, writer: asyncio.StreamWriter, session: GatewaySession
    ) -> None:
        writer.transport.set_write_buffer_limits(MAX_UNREAD)
        while not writer.is_closing():
            await writer.drain()
            message = await frames.read_frame(connection, messages.FROM_GATEWAY, arrivals=self._arrivals)
            if isinstance(message, Ping):
                session.send(Pong())
            elif isinstance(message, Leave):
                session.leave()
                return
            else:
                session.take(message)

    def _welcome(self, version: int, *, knows_gateway: bool) -> Welcome:
        level, description = self._node.workspaces.level, self._node.workspaces.describe()
        node = self._node
        about = self._epoch, level, description, str(self._state), self._root, self._name, node.max_people
        return Welcome(version, RELEASE, *about, knows_gateway, time.time(), node.workspaces.isolates_environment)

    async def close(self, grace: float, hurried: asyncio.Event) -> None:
        """Start nothing more, wait at most `grace` seconds for the commands and pages of calls, and end all. The wait
        ends when `hurried` is set."""
        self._node.is_ending = True
        waits = [session.wait_unattended() for session in self._sessions.values() if session.is_attached]
        pages = [task for session in self._sessions.values() for task in session.list_page_tasks()]
        calls = asyncio.gather(*waits, *map(asyncio.shield, pages), return_exceptions=True)
        ends: list[asyncio.Future[Any]] = [calls, asyncio.ensure_future(hurried.wait())]
        await asyncio.wait(ends, timeout=grace, return_when=asyncio.FIRST_COMPLETED)
        for end in ends:
            end.cancel()
        for task in pages:
            task.cancel()
        await self._node.workspaces.close()
        await asyncio.gather(*pages, return_exceptions=True)
        await self._node.pages.reader.close()
        if self._keeping:
            await asyncio.wait(self._keeping, timeout=KEEP_WITHIN)
        for writer in list(self._connections):
            writer.close()


def find_peer_uid(connection: socket.socket) -> int | None:
    """Return the user at the other end of a unix socket, or None for others and where the system does not say."""
    option = getattr(socket, "SO_PEERCRED", None)
    if option is None or connection.family != socket.AF_UNIX:
        return None
    return int(CREDENTIALS.unpack(connection.getsockopt(socket.SOL_SOCKET, option, CREDENTIALS.size))[1])

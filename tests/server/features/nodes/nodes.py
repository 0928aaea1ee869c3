"""A node process for the tests, and a workspace of it for a principal of its own."""

import asyncio
import contextlib
import os
import secrets
import signal
import subprocess
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from tests.clients.raw_client import ROOT, eventually
from tests.server.features.nodes.tls.certificates import (
    write_gateway_certificate,
    write_node_certificate,
)
from tests.servers import forked_command
from tests.servers.reserved_port import kept_port
from tests.tools.shell_commands import BOUND, Caller
from toolgate.server.base.watch import FileChanges
from toolgate.server.features.nodes.address import NodeAddress
from toolgate.server.features.nodes.gateway import link
from toolgate.server.features.nodes.gateway.placement import Placement
from toolgate.server.features.nodes.gateway.remote_workspaces import RemoteWorkspaces
from toolgate.server.features.nodes.pages.remote_page_reader import RemotePageReader
from toolgate.server.features.nodes.tls.certificate_file import GATEWAY, CertificateFile
from toolgate.server.state.sqlite.store import SqliteStore
from toolgate.tools.api.context.notices import Notices
from toolgate.tools.workspace.commands import end_notice
from toolgate.tools.workspace.output.run_record import Run, TaskEnd


class NodeProcess:
    """A node with its state in `folder`. `options` are further words of the command line. With a `host` it serves TLS,
    with the certificates in `certificates`. `enter` is a command that the node is started by. `env` is added to its
    environment."""

    def __init__(
        self,
        folder: Path,
        *options: str,
        host: str | None = None,
        enter: Sequence[str] = (),
        env: Mapping[str, str] | None = None,
    ) -> None:
        self._enter = enter
        self.socket = folder / "node.sock"
        self.address = NodeAddress(self.socket)
        self.state = folder / "state"
        self.certificate: CertificateFile | None = None  # the gateway's
        self.certificates = folder / "certificates"
        if host is not None:
            self.certificates.mkdir()
            self.address = NodeAddress(host=host, port=kept_port("localhost" if enter else host))
            options = (*options, "--node-certificate", str(write_node_certificate(self.certificates, host)))
            self.certificate = CertificateFile(write_gateway_certificate(self.certificates), GATEWAY)
        self._words = ("--state", str(self.state), "--listen", str(self.address), *options)
        self._environment = {"PATH": os.environ["PATH"], "LANG": "C.UTF-8", **(env or {})}
        self.log = folder / "node.log"
        self.start()

    def start(self) -> None:
        """Start the process, and wait until it listens."""
        with self.log.open("ab") as log:
            self.process = forked_command.start(
                [*self._enter, forked_command.COMMAND, "node", *self._words],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=log,
                cwd=ROOT,
                env=self._environment,
            )
        assert eventually(self.answers)  # no loop of its own: that of a browser's driver may run

    def answers(self) -> bool:
        assert self.process.poll() is None, self.log.read_text()
        try:
            link.greet(self.address, BOUND, self.certificate)
        except link.NodeUnreachableError:
            return False
        return True

    def kill(self) -> None:
        self.process.kill()
        self.process.wait(BOUND)

    def stop(self) -> int:
        """End it as a service manager does, and return its exit code."""
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(BOUND)


@contextlib.contextmanager
def running_node(folder: Path, *options: str, **how: Any) -> Iterator[NodeProcess]:
    folder.mkdir(exist_ok=True)
    node = NodeProcess(folder, *options, **how)
    try:
        yield node
    finally:
        if node.process.poll() is None:
            node.kill()


def fake_principal() -> str:
    return f"u-{secrets.token_hex(20)}"


async def list_nobody() -> None:
    """Return that it is not known who is gone."""


class OneNode(Placement):
    """Stands in for the database: everybody is at the one node."""

    async def locate(self, principal: str, *, chooses: bool = True) -> link.NodeLink:
        return self.links[0]

    def find_link(self, principal: str) -> link.NodeLink:
        return self.links[0]

    async def bind_name(self, link: link.NodeLink, name: str) -> None:
        """Accept any name."""


def fake_placement(address: NodeAddress, certificate: CertificateFile | None = None, database: str = "") -> Placement:
    welcome = link.greet(address, BOUND, certificate)
    return OneNode(SqliteStore(Path("/nowhere")), [link.NodeLink(address, welcome, certificate, database)])


@contextlib.asynccontextmanager
async def gateway(
    node: NodeProcess, on_end: Callable[[str, Run], None] = lambda _, run: None, database: str = ""
) -> AsyncIterator[RemoteWorkspaces]:
    """A gateway that has everybody at this node. `database` is the id of its database."""

    def take_end(principal: str, end: TaskEnd) -> None:
        on_end(principal, end.run)
        end.confirm()

    placement = fake_placement(node.address, node.certificate, database)
    remote = RemoteWorkspaces(placement, FileChanges(), take_end, list_nobody)
    try:
        yield remote
    finally:
        await remote.close()


@contextlib.asynccontextmanager
async def remote_workspace(node: NodeProcess, notices: Notices | None = None) -> AsyncIterator[Any]:
    held = Notices() if notices is None else notices
    principal = fake_principal()
    async with gateway(node, lambda _, run: end_notice.add(held, run)) as remote:
        mine = remote.get_or_open(principal)
        assert await mine.list() == []
        try:
            yield mine
        finally:
            async with asyncio.timeout(BOUND):
                await remote.forget(principal)


@contextlib.asynccontextmanager
async def remote_caller(node: NodeProcess) -> AsyncIterator[Caller]:
    notices = Notices()
    async with remote_workspace(node, notices) as mine:
        yield Caller(mine, notices)


class ReaderOfNode(RemotePageReader):
    """The reader of a gateway, which ends with it."""

    def __init__(self, node: NodeProcess) -> None:
        self.remote = RemoteWorkspaces(fake_placement(node.address), FileChanges(), lambda _, run: None, list_nobody)
        super().__init__(lambda name: self.remote.get_pages(name if name.startswith("u-") else "local"))

    async def close(self) -> None:
        await self.remote.close()


@contextlib.asynccontextmanager
async def reading(node: NodeProcess) -> AsyncIterator[ReaderOfNode]:
    reader = ReaderOfNode(node)
    try:
        yield reader
    finally:
        await reader.close()

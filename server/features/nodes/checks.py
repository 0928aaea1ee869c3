"""Check the nodes that a server uses and, on a node's machine, whether a node can start."""

import asyncio
import fcntl
import os
import stat
from collections.abc import Sequence
from contextlib import aclosing, closing
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from toolgate.server.base.errors import UsageError
from toolgate.server.base.text import format_size
from toolgate.server.base.version import VERSION
from toolgate.server.cli.doctor.machine import DISK_FULL, DISK_LOW, MEMORY_FULL, MEMORY_LOW
from toolgate.server.cli.doctor.report import CheckError, CheckFinding, CheckNote, CheckRow, CheckSkippedError
from toolgate.server.cli.terminal.output import format_count
from toolgate.server.config.load import Config
from toolgate.server.features.nodes.address import NodeAddress
from toolgate.server.features.nodes.report import NodeLoad
from toolgate.tools.api.regular_file import open_regular

if TYPE_CHECKING:
    from toolgate.server.features.nodes.gateway.link import NodeLink
    from toolgate.server.features.nodes.messages import Welcome
    from toolgate.server.features.nodes.tls.certificate_file import CertificateFile

TIMEOUT = 3.0  # seconds for a node to answer
AT_NODE = ("sandbox", "limits", "shell", "browser")  # checks of the machine where commands and pages are


async def skip_at_node(_config: Config) -> CheckFinding:
    raise CheckSkippedError("it is the node's: toolgate node doctor checks that machine")


def node_checks(config: Config) -> list[CheckRow]:
    """Return a check of each node."""
    names = ["node"] if len(config.node) == 1 else [f"node {number}" for number in range(1, len(config.node) + 1)]
    return [(name, partial(_check_node, config, each), ()) for name, each in zip(names, config.node, strict=True)]


async def _check_node(config: Config, address: NodeAddress) -> CheckFinding:
    from toolgate.server.features.nodes import connect  # start-up
    from toolgate.server.features.nodes.gateway import link

    if address.path is not None:
        _check_socket(address)
    try:
        certificate = connect.read_certificate(config, "--node", *config.node)
    except UsageError as error:
        raise CheckError(str(error), "correct it: the server refuses to start with it") from None
    try:
        welcome = await asyncio.to_thread(link.greet, address, TIMEOUT, certificate)
    except link.NodeUnreachableError as error:
        raise CheckError(
            f"no node answers at {address}: {error}",
            f"start it with toolgate node --listen {address}, or correct --node; toolgate node doctor checks a machine",
        ) from None
    await _check_name(config, address, welcome.name)
    node = link.NodeLink(address, welcome, certificate)
    try:
        load, seconds = await _measure(node)
    finally:
        await node.close()
    return note_end(judge_node(config, address, welcome, load, seconds), certificate)


async def _check_name(config: Config, address: NodeAddress, name: str) -> None:
    """Raise CheckError if the node's name is that of the node at another of the server's addresses."""
    from toolgate.server.app.features import open_store
    from toolgate.server.base.errors import StateError
    from toolgate.server.features.nodes import rows as node_rows  # start-up

    addresses = {str(each) for each in config.node}
    async with aclosing(open_store(config, upgrades=False)) as store:
        try:
            find = partial(node_rows.find_holder, name=name, addresses=addresses)
            holder = None if store.is_empty() else await store.read(find)
        except StateError:  # the check of the database says why
            return
    if holder not in (None, str(address)):
        raise CheckError(
            f"the node at {address} is refused: it says that it is {name}, which is at {holder}",
            f"if {name} has moved, remove --node {holder}; otherwise inspect the machine at {address}",
        )


def note_end(finding: CheckFinding, certificate: "CertificateFile | None") -> CheckFinding:
    """Return the finding, with a note if the certificate ends soon."""
    if isinstance(finding, CheckNote) or certificate is None or not certificate.is_ending:
        return finding
    end = f"{certificate.path} ends in {max(0, certificate.count_days())} days"
    return CheckNote(f"{finding}; {end}", "make another: toolgate node certificate --replace, with the node's names")


def _check_socket(address: NodeAddress) -> None:
    """Raise CheckError if the socket is missing, is none, or is not for this user."""
    path = address.path
    assert path is not None
    try:
        found = path.stat()
    except FileNotFoundError:
        remedy = f"start a node with toolgate node --listen {address}, or correct --node"
        raise CheckError(f"there is no socket {path}", remedy) from None
    except PermissionError:
        raise CheckError(f"this user may not enter {path.parent}", "let the server's user pass through it") from None
    if not stat.S_ISSOCK(found.st_mode):
        raise CheckError(f"{path} is not a socket", "correct --node")
    if os.geteuid() not in (0, found.st_uid):
        raise CheckError(
            f"{path} belongs to uid {found.st_uid}: a node's socket is for its own user and root alone",
            "run the server as that user, or use HOST:PORT with --node-certificate",
        )


async def _measure(node: "NodeLink") -> tuple[NodeLoad | None, float]:
    """Return how full the node is, or None if it does not say, and how long it took."""
    from toolgate.server.features.nodes.gateway.monitor import NodeMonitor  # start-up

    async def note_nothing(_link: "NodeLink") -> None: ...

    monitor = NodeMonitor(node, note_nothing)
    await monitor.ask()  # the first includes the connection
    await monitor.ask()
    report = monitor.report()
    return report.load, report.round_trip


def judge_node(
    config: Config, address: NodeAddress, welcome: "Welcome", load: NodeLoad | None, seconds: float
) -> CheckFinding:
    """Return the finding about a node by what it says of itself. `seconds`: how long that took. Raises CheckError."""
    told = f"{welcome.name} at {address}: Toolgate {welcome.release}, {welcome.description}"
    if welcome.level == "none" and not config.accept_unsandboxed:
        risk = "anyone with tools:shell has all permissions of the node's user"
        raise CheckError(told, f"{risk}: install bubblewrap at the node, and start it with --sandbox auto")
    if load is None:
        return CheckNote(f"{told}; it does not say how full it is", "upgrade the older of the two")
    told += f"; {_describe_load(welcome, load)}; answers in {seconds * 1000:.1f} ms"
    if load.disk_free is not None and load.disk_free < DISK_FULL:
        raise CheckError(f"its disk is full: {told}", "free some space at the node: writes fail or are lost")
    if load.memory_free is not None and load.memory_free < MEMORY_FULL:
        raise CheckError(f"its memory is used up: {told}", "stop what uses it, or add memory at the node")
    notes = [f"{what} is nearly full" for what, low in _list_low(load) if low]
    if welcome.release != VERSION:
        notes.append(f"this is Toolgate {VERSION}")
    if notes or load.weaknesses:
        remedy = "toolgate node doctor, on its machine, says what to do"
        return CheckNote(f"{told}: {'; '.join((*notes, *load.weaknesses))}", remedy)
    return told


def _list_low(load: NodeLoad) -> list[tuple[str, bool]]:
    disk, memory = load.disk_free, load.memory_free
    return [
        ("its disk", disk is not None and disk < DISK_LOW),
        ("its memory", memory is not None and memory < MEMORY_LOW),
    ]


def _describe_load(welcome: "Welcome", load: NodeLoad) -> str:
    most = f" of {welcome.max_people}" if welcome.max_people else ""
    people = f"{load.people}{most} with a workspace"
    told = [people, f"{format_count(load.foreground + load.background, 'command')} running"]
    told += [f"{format_size(load.disk_free)} of disk"] if load.disk_free is not None else []
    told += [f"{format_size(load.memory_free)} of memory free"] if load.memory_free is not None else []
    return ", ".join(told)


async def listening(config: Config, addresses: Sequence[NodeAddress]) -> CheckFinding:
    """Check that a node can listen at its addresses, by doing so for a moment."""
    from toolgate.server.features.nodes import connect  # start-up

    if _is_locked(config):
        return f"a node with {config.state} runs"
    try:
        certificate = connect.read_certificate(config, "--listen", *addresses)
        return note_end("; ".join(_try_address(address, config.state) for address in addresses), certificate)
    except UsageError as error:
        raise CheckError(str(error), "change what is named: the node refuses to start with it") from None


def _try_address(address: NodeAddress, state: Path) -> str:
    """Return that a node can listen at the address. Raises CheckError and UsageError."""
    from toolgate.server.features.nodes.node import listener  # as above

    folder = None if address.path is None else address.path.parent
    if folder is not None and not folder.is_dir():
        if folder == state:
            return f"{address} will be made at the start"
        raise CheckError(f"there is no folder {folder}", "make it, or name another socket with --listen")
    with closing(listener.open_listener(address)):
        if address.path is not None:
            address.path.unlink()
    return f"{address} is free"


def _is_locked(config: Config) -> bool:
    """Return whether a node uses the state."""
    try:
        descriptor = open_regular(config.state / "node.lock", os.O_RDWR)
    except OSError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
    return False

"""Run a node (`toolgate node`): hold people's commands, files and pages for servers that are started with --node."""

import asyncio
import fcntl
import logging
import os
import re
import sys
from collections.abc import Sequence
from pathlib import Path

from toolgate.server.app import build
from toolgate.server.base import logging as logs
from toolgate.server.base import run_loop
from toolgate.server.base.asyncio_tasks import DelayedTasks
from toolgate.server.base.errors import UsageError
from toolgate.server.base.watch import FileChanges
from toolgate.server.cli.readiness import notify_ready
from toolgate.server.config.load import Config
from toolgate.server.features.nodes.address import NodeAddress, name_socket, parse_node_address
from toolgate.server.features.nodes.connect import read_certificate
from toolgate.server.features.nodes.node.databases import DATABASES_FILE, KnownDatabases
from toolgate.server.features.nodes.node.listener import GatewayListener, SocketFile, open_listener
from toolgate.server.features.nodes.node.load_meter import LoadMeter
from toolgate.server.features.nodes.node.moves import WorkspaceMoves
from toolgate.server.features.nodes.node.name import check_node_name, find_or_choose_name
from toolgate.server.features.nodes.node.node import Node
from toolgate.server.features.nodes.node.people import GonePrincipals
from toolgate.server.features.nodes.node.server import NodeServer
from toolgate.server.features.nodes.pages.node_pages import NodePages
from toolgate.tools.api.regular_file import open_or_replace
from toolgate.tools.workspace import limits

DONE, FAULT = 0, 1
SOCKET = "node.sock"
ALLOW_PRIVATE = "the node's --allow-private"  # as people who use a server should read it
GRACE = 5.0  # seconds for commands whose calls wait, at the end
CLEAN_AFTER = 3.0  # seconds after the start that workspaces are first looked at

log = logging.getLogger("toolgate.node")


def serve_node(options: Config, *, listen: Sequence[str] | None, name: str | None, max_people: str | None) -> int:
    """Serve until a signal ends it."""
    if sys.platform not in ("linux", "darwin"):
        raise UsageError(f"{sys.platform} is not supported: use Linux, macOS, or WSL on Windows")
    addresses = choose_addresses(options, listen)
    note_addresses(options, addresses)
    check_server_options(options)
    try:
        chosen = check_node_name(name) if name is not None else None
    except ValueError as error:
        raise UsageError(f"--name {error}") from None
    people = parse_people(max_people, options)
    import uvloop  # start-up: other commands do without it

    logs.start(options.verbose, options.logs, options.log_format)
    code = DONE
    try:
        run_loop.run_server(lambda: run_node(options, addresses, chosen, people), uvloop.new_event_loop)
    except UsageError:
        raise
    except Exception:
        log.exception("the node failed")
        code = FAULT
    finally:
        logs.stop()
    run_loop.exit_if_hung(code)
    return code


def check_server_options(options: Config) -> None:
    """Raise UsageError for options of a node that are its servers'."""
    for word in filter(limits.is_of_calls, options.limit):
        raise UsageError(f"--limit {word} is the server's: give it to the server with --node, not to toolgate node")


def choose_addresses(options: Config, words: Sequence[str] | None) -> tuple[NodeAddress, ...]:
    """Return the addresses of --listen, by default the socket in the state folder. Raises UsageError."""
    try:
        addresses = tuple(map(parse_node_address, words or ())) or (name_socket(options.state / SOCKET),)
    except ValueError as error:
        raise UsageError(f"--listen: {error}") from None
    for address in addresses:
        if addresses.count(address) > 1:
            raise UsageError(f"--listen {address} is given twice: give each address once")
    return addresses


def note_addresses(options: Config, addresses: Sequence[NodeAddress]) -> None:
    """Have the options count as those of a process that serves servers at these addresses."""
    options.serves_servers = True
    options.own_sockets = tuple(address.path for address in addresses if address.path is not None)


async def run_node(options: Config, addresses: Sequence[NodeAddress], chosen: str | None, max_people: int) -> None:
    """Serve gateways until a signal comes, then end all that runs. A second signal ends the grace time."""
    interrupted, hurried = run_loop.cancel_on_signal()
    state = build.state_folder(options)
    use, owner = build.lock_state(state), lock_node(state)
    name = keep_name(state, chosen)
    root = build.workspace_root(options)
    certificate = read_certificate(options, "--listen", *addresses)
    lines = [(open_listener(address), address) for address in addresses]
    socket_files = [SocketFile(address.path) for address in addresses if address.path is not None]
    node, file_changes, jobs = Node(), FileChanges(), DelayedTasks()
    node.max_people = max_people
    node.gone = GonePrincipals(read_databases(state))
    node.workspaces = build.build_workspaces(options, state, root, file_changes, node.note_task_end)
    node.pages = NodePages(build.build_page_reader(options, build.build_web(options, ALLOW_PRIVATE)))
    node.load_meter = LoadMeter(state, root, node.workspaces, node.pages)
    node.moves = WorkspaceMoves(state, node.workspaces, is_shared=root is not None)
    node.cleaner = build.build_cleaner(options, state, root, node.list_gone, node.forget)
    if node.cleaner is not None:
        node.moves.leave_message = node.cleaner.uses.leave_message
    server = NodeServer(node, state, root, name)
    listeners = [
        GatewayListener(line, server.serve, certificate if address.path is None else None) for line, address in lines
    ]
    for job in node.workspaces.list_jobs():
        jobs.start(job, 1.0)
    if certificate is not None:
        jobs.start(certificate.watch_end, 0.0)
    if node.cleaner is not None:
        jobs.start(node.cleaner.run, CLEAN_AFTER)
    run_loop.settle_memory()
    where = " and ".join(map(str, addresses))
    log.info("node %s listening on %s, %s", name, where, node.workspaces.describe())
    notify_ready(options.socket_variables, where)
    try:
        await asyncio.gather(*(listener.run() for listener in listeners))
    except asyncio.CancelledError:
        if not interrupted.is_set():
            raise
    finally:
        for file in socket_files:
            file.remove()
        await server.close(options.grace if options.is_given("grace") else GRACE, hurried)
        await asyncio.gather(*(listener.close() for listener in listeners))
        await jobs.close()
        await file_changes.close()
        os.close(owner)
        os.close(use)


def keep_name(state: Path, chosen: str | None) -> str:
    """Return the node's name, which its first start keeps. Raises UsageError."""
    try:
        return find_or_choose_name(state, chosen)
    except ValueError as error:
        raise UsageError(f"--name: {error}") from None
    except OSError as error:
        raise UsageError(f"--state: {state}: {(error.strerror or str(error)).lower()}") from None


def read_databases(state: Path) -> KnownDatabases:
    """Return the databases that gateways of the node have had. Raises UsageError."""
    try:
        return KnownDatabases(state / DATABASES_FILE)
    except (OSError, ValueError) as error:
        raise UsageError(f"--state: {error}") from None


def parse_people(word: str | None, options: Config) -> int:
    """Return how many people the node takes, 0 for any number. Raises UsageError."""
    if word is None:
        return 0
    if not re.fullmatch("[1-9][0-9]{0,5}", word):
        raise UsageError(f"--max-people: must be a number from 1 to 999999, not {word!r}")
    if options.workspace is not None:
        raise UsageError("--max-people has no effect with --workspace, which everybody shares: leave one out")
    return int(word)


def lock_node(state: Path) -> int:
    """Return a descriptor that keeps other nodes from this state folder until it is closed. Raises UsageError."""
    descriptor = open_or_replace(state / "node.lock", os.O_RDWR | os.O_CREAT)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        raise UsageError(f"--state: another node has {state}: stop it, or name another folder") from None
    return descriptor

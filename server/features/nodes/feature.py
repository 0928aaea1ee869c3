"""Plug nodes into the server: workspaces and pages are theirs, and what belongs to a node's options is refused here."""

import contextlib
import logging
from collections.abc import AsyncGenerator
from functools import partial
from typing import TYPE_CHECKING

from toolgate.server.app.host import AppHost
from toolgate.server.base.errors import UsageError
from toolgate.server.config.load import Config
from toolgate.server.features.nodes import connect
from toolgate.server.features.nodes.gateway import link
from toolgate.server.features.nodes.gateway.placement import Placement
from toolgate.server.features.nodes.gateway.remote_workspaces import RemoteWorkspaces
from toolgate.server.features.nodes.health import describe_nodes
from toolgate.server.features.nodes.node import databases
from toolgate.server.features.nodes.pages.remote_page_reader import RemotePageReader
from toolgate.server.state.keys import check as key_check

if TYPE_CHECKING:
    from toolgate.server.base.reports.metric_rows import MetricRow

NODE_TIMEOUT = 5.0  # seconds for a node to answer at the start

log = logging.getLogger("toolgate")


class NodesFeature:
    """The workspaces at the nodes of --node. `connect` greets these, since levels of sandboxes come from them."""

    def __init__(self) -> None:
        self._links: list[link.NodeLink] = []
        self._workspaces: RemoteWorkspaces | None = None

    def build(self, host: AppHost) -> None:
        host.where.take(lambda _: "at nodes")
        host.root.take(lambda _: None)
        host.workspaces.take(lambda _: self._get_workspaces(host))
        host.page_reader.take(lambda _: RemotePageReader(self._get_workspaces(host).get_pages))
        host.prepare.take(lambda _: partial(self._get_workspaces(host).prepare, on_message=host.note_workspace))
        host.cleaner.take(lambda _: None)
        host.health_parts.append(lambda: describe_nodes(self._get_workspaces(host).list_nodes()))
        host.metric_rows.append(lambda: self._list_rows(host))

    async def connect(self, host: AppHost) -> None:
        """Raises UsageError if no node answers, and for nodes that can't be used together."""
        config = host.config
        certificate = connect.read_certificate(config, "--node", *config.node)
        answers = link.greet_all(config.node, NODE_TIMEOUT, certificate)  # blocks: nothing else runs yet
        reasons = [f"{address} ({answer})" for address, answer in answers if isinstance(answer, Exception)]
        if len(reasons) == len(answers):
            where, first = " nor at ".join(reasons), config.node[0]
            raise UsageError(f"--node: no node answers at {where}: start one with toolgate node --listen {first}")
        for reason in reasons:
            log.warning("no node answers at %s: it is used as soon as it does", reason)
        database = _name_database(host)
        self._links = [
            link.NodeLink(address, None if isinstance(answer, Exception) else answer, certificate, database)
            for address, answer in answers
        ]

    @contextlib.asynccontextmanager
    async def run(self, host: AppHost) -> AsyncGenerator[None]:
        yield

    def _list_rows(self, host: AppHost) -> "list[MetricRow]":
        from toolgate.server.features.nodes.gauges import node_rows  # start-up

        return node_rows(self._get_workspaces(host).list_nodes)

    def _get_workspaces(self, host: AppHost) -> RemoteWorkspaces:
        if self._workspaces is None:
            placement, needs_sandbox = Placement(host.store(), self._links), _needs_sandbox(host.config)
            try:
                self._workspaces = RemoteWorkspaces(
                    placement, host.file_changes(), host.note_task_end, host.find_gone, needs_sandbox=needs_sandbox
                )
            except link.NodeUnreachableError as error:
                raise UsageError(f"--node: {error}") from None
        return self._workspaces


def _needs_sandbox(config: Config) -> bool:
    return bool(config.is_public and not config.accept_unsandboxed)


def _name_database(host: AppHost) -> str:
    """Return the id by which nodes know the database of this server. Raises UsageError."""
    try:
        secret = host.secret()
        if secret is None:
            return databases.make_database_id(host.store().folder)
        return databases.derive_database_id(secret)
    except OSError as error:
        raise UsageError(f"--state: {key_check.describe_fault(error, 'database')}") from None

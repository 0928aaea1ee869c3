"""Ask a node how full it is, every few seconds: that also shows whether it answers."""

import asyncio
import logging
from collections.abc import Awaitable, Callable

from toolgate.server.base.errors import StateError
from toolgate.server.base.principals.principal import LOCAL_NAME
from toolgate.server.features.nodes.gateway.link import NodeLink
from toolgate.server.features.nodes.gateway.remote_methods import NodeRequests
from toolgate.server.features.nodes.report import NodeLoad, NodeReport

ASK_EVERY = 2.0  # seconds
MAX_WORD = 40  # characters of a release or a level: a node may say anything

log = logging.getLogger("toolgate.node")


class NodeMonitor:
    """Knows the load of the node of `link`; None while that is unknown. `note_node` is called with the link when the
    node first says its name, and when that changes."""

    def __init__(self, link: NodeLink, note_node: Callable[[NodeLink], Awaitable[None]]) -> None:
        self.load: NodeLoad | None = None
        self._link = link
        self._note_node = note_node
        self._noted = ""
        self._round_trip = 0.0  # seconds

    async def run(self) -> None:
        """Ask until cancelled."""
        while True:
            await self.ask()
            await asyncio.sleep(ASK_EVERY)

    async def ask(self) -> None:
        """Ask once."""
        clock = asyncio.get_running_loop().time
        begun = clock()
        try:
            self.load = await NodeRequests.create(self._link, LOCAL_NAME).measure_load()
            self._round_trip = clock() - begun
        except Exception as error:  # noqa: BLE001  # a node of another release may answer anything
            self.load = None
            log.debug("the load of the node at %s is unknown: %s", self._link.address, error)
            return
        if self._link.name != self._noted:
            try:
                await self._note_node(self._link)
                self._noted = self._link.name
            except StateError as error:
                log.debug("the name of the node at %s is not noted: %s", self._link.address, error)

    def report(self) -> NodeReport:
        """Return what is known now."""
        link = self._link
        return NodeReport(
            address=str(link.address),
            name=link.name,
            is_reachable=not link.is_away,
            release=link.welcome.release[:MAX_WORD] if link.welcome is not None else "",
            level=link.welcome.level[:MAX_WORD] if link.welcome is not None else "",
            load=None if link.is_away else self.load,
            round_trip=self._round_trip,
            waiting=link.waiting_count,
            failures=link.failures,
        )

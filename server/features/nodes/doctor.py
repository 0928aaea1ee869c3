"""Check the nodes that a server uses, and their clocks."""

import asyncio
from collections.abc import Callable
from functools import partial

from toolgate.server.cli.doctor.report import DoctorPart
from toolgate.server.config.load import Config
from toolgate.server.features.nodes import checks

TIMEOUT = 3.0  # seconds for the clock of a node


def list_checks(config: Config) -> DoctorPart:
    """Return the checks that --node asks for. What commands need is checked where they run."""
    skipped = {name: partial(checks.skip_at_node, config) for name in checks.AT_NODE}
    clocks = {f"the node at {address}": partial(_read_clock, config, at) for at, address in enumerate(config.node)}
    return DoctorPart(checks.node_checks(config), after="options", replaced=skipped, clocks=clocks)


async def _read_clock(config: Config, place: int, now: Callable[[], float]) -> tuple[float, float, float]:
    from toolgate.server.features.nodes import connect  # start-up
    from toolgate.server.features.nodes.gateway import link

    certificate = connect.read_certificate(config, "--node", *config.node)

    def read() -> tuple[float, float, float]:  # in a thread, so that other checks' imports do not come between
        before = now()
        welcome = link.greet(config.node[place], TIMEOUT, certificate)
        return before, welcome.clock, now()

    return await asyncio.to_thread(read)

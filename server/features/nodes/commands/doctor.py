"""Check whether a node can run on this machine (`toolgate node doctor`)."""

from collections.abc import Sequence
from functools import partial

from toolgate.server.base.version import VERSION
from toolgate.server.cli.doctor.main import MACHINE_CHECKS, run_rows
from toolgate.server.cli.doctor.report import CheckRow
from toolgate.server.config.load import Config
from toolgate.server.features.nodes import checks
from toolgate.server.features.nodes.commands.node import check_server_options, choose_addresses, note_addresses

CHECKS = (  # of a server's machine that are also a node's
    *("python", "installation", "sandbox", "limits", "state folder", "state files", "replaced files", "clock"),
    *("disk space", "memory", "open files", "shell", "browser"),
)


async def check_node(config: Config, *, listen: Sequence[str] | None, json: bool) -> int:
    """Check whether a node can run on this machine with these options; 0 if no check fails."""
    addresses = choose_addresses(config, listen)
    note_addresses(config, addresses)
    check_server_options(config)
    rows: list[CheckRow] = [(name, partial(MACHINE_CHECKS[name], config), ()) for name in CHECKS]
    rows.append(("address", partial(checks.listening, config, addresses), ()))
    about = {"toolgate": VERSION, "node": " and ".join(map(str, addresses))}
    return await run_rows(config, rows, about if json else None)

"""Check whether this machine can serve.

Checks change nothing: they remove what they create.
"""

import sys
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from itertools import chain
from pkgutil import resolve_name
from typing import Any

from toolgate.server.base import progress
from toolgate.server.base.version import VERSION
from toolgate.server.cli.doctor import (
    clocks,
    installation,
    machine,
    replaced_files,
    serving,
    state,
    state_files,
    tools,
)
from toolgate.server.cli.doctor.report import CheckFinding, CheckRow, DoctorPart, run_checks
from toolgate.server.cli.terminal.style import choose_style
from toolgate.server.config.feature_rows import ROOM
from toolgate.server.config.load import Config


async def check(config: Config, *, json: bool) -> int:
    """Check this machine; 0 if no check fails."""
    return await run_rows(config, machine_checks(config), {"toolgate": VERSION, "url": None} if json else None)


def machine_checks(config: Config) -> list[CheckRow]:
    """Return the checks of this machine, and of what the options say that the server uses."""
    return merge_parts(config, list_parts(config))


def merge_parts(config: Config, parts: Sequence[DoctorPart]) -> list[CheckRow]:
    """Return the checks of this machine with those of features. Raises ValueError for a part that names no check of
    the machine: its own would be left out."""
    for name in chain.from_iterable((part.after, *part.replaced, *part.needs) for part in parts):
        if name not in MACHINE_CHECKS:
            raise ValueError(f"there is no check {name!r} of the machine, which a feature names")
    readings = {name: reading for part in parts for name, reading in part.clocks.items()}
    rows: list[CheckRow] = []
    for name, look in MACHINE_CHECKS.items():
        replaced = next((part.replaced[name] for part in parts if name in part.replaced), partial(look, config))
        rows.append((name, replaced, tuple(need for part in parts for need in part.needs.get(name, ()))))
        rows += [row for part in parts if part.after == name for row in part.checks]
        if name == "state database" and readings:
            rows.append(("other clocks", partial(clocks.compare_clocks, readings), ()))
    return rows


def list_parts(config: Config) -> list[DoctorPart]:
    """Return what the features check that the options turn on."""
    from toolgate.server.app.features import list_rows  # start-up

    return [resolve_name(f"{ROOM}.{row.doctor}")(config) for row in list_rows(config) if row.doctor]


async def run_rows(config: Config, rows: Sequence[CheckRow], about: Mapping[str, Any] | None) -> int:
    """Run checks and print what they find, as one JSON object if there is something that it is `about`; 0 if no check
    fails."""
    style = choose_style(sys.stdout, config.environment)
    return await run_checks(rows, progress.terminal_progress(config.environment), about, style)


MACHINE_CHECKS: dict[str, Callable[[Config], Awaitable[CheckFinding]]] = {
    "python": machine.python,
    "installation": installation.installation,
    "options": serving.options,
    "sandbox": serving.sandbox,
    "limits": serving.limits,
    "proxies": serving.proxies,
    "client documents": serving.documents,
    "state folder": state.folder,
    "state files": state_files.check,
    "replaced files": replaced_files.people,
    "state database": state.database,
    "signing key": state.signing_key,
    "clock": machine.clock,
    "disk space": machine.disk,
    "memory": machine.memory,
    "open files": machine.open_files,
    "shell": tools.shell,
    "browser": tools.browser,
    "plugins": tools.plugins,
    "skills": tools.skills,
    "rules": tools.rules,
    "port": serving.port,
}

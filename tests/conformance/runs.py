"""The runs of the suite that must be clean, the server they go against, and what each of them is known to check."""

import contextlib
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path

from tests.clients.raw_http_client import site
from tests.conformance.suite import Run, run

HERE = Path(__file__).parent
TABLE = HERE / "checks.txt"
NOT_RUN = "-"

RUNS = {  # a run's name → the suite's version and options
    "0.1": ("0.1", "--suite", "all"),
    "0.1@2025-06-18": ("0.1", "--suite", "all", "--spec-version", "2025-06-18"),
    "0.1@2025-11-25": ("0.1", "--suite", "all", "--spec-version", "2025-11-25"),
    "0.2": ("0.2", "--suite", "all"),
    "0.2@2025-06-18": ("0.2", "--suite", "all", "--spec-version", "2025-06-18"),
    "0.2@2025-11-25": ("0.2", "--suite", "all", "--spec-version", "2025-11-25"),
    "0.2@2026-07-28": ("0.2", "--suite", "all", "--spec-version", "2026-07-28"),
    "for-2025-11-25": ("0.2", "--requirements", "2025-11-25"),
    "for-2026-07-28": ("0.2", "--requirements", "2026-07-28"),
}
SKIPPED = "tasks-status-notifications: tasks-status-notifications: SKIPPED"  # always, whatever the server does


@contextlib.contextmanager
def subject(folder: Path) -> Iterator[str]:
    """The URL of a server with the suite's fixture: a copy of it, since its plugins change their own folder."""
    plugins = folder / "plugins"
    shutil.copytree(HERE / "plugins", plugins, ignore=shutil.ignore_patterns("__pycache__"))
    with site(folder / "site", "--plugins", str(plugins), "--skills", str(HERE / "skills")) as listening:
        yield f"{listening.url}/mcp"


def carry_out(name: str, url: str, folder: Path) -> Run:
    """The run called `name` against `url`; `folder` is an empty one for what it writes."""
    version, *options = RUNS[name]
    return run(version, url, folder, *options)


def faults(found: Run) -> list[str]:
    """What a run may not find."""
    return [fault for fault in found.faults() if not fault.startswith(SKIPPED)]


def deviations(name: str, found: Run) -> list[str]:
    """Where a run checked something else than it is known to check: a scenario that is gone counts as none."""
    known, passed = expected()[name], found.passed
    return [
        f"{scenario}: {passed.get(scenario, 'no')} checks passed, {known.get(scenario, 'none')} should"
        for scenario in sorted({*known, *passed})
        if passed.get(scenario) != known.get(scenario)
    ]


def expected() -> dict[str, dict[str, int]]:
    """The checks each run is to pass: how many of each scenario, as the table beside this file has it."""
    head, *rows = (line.split() for line in TABLE.read_text().splitlines() if not line.startswith("#"))
    return {
        name: {row[0]: int(row[column]) for row in rows if row[column] != NOT_RUN}
        for column, name in enumerate(head[1:], 1)
    }


def table(passed: Mapping[str, Mapping[str, int]]) -> Iterator[str]:
    """The lines of such a table."""
    scenarios = sorted({scenario for run in passed.values() for scenario in run})
    width = max(map(len, scenarios))
    yield " ".join(["scenario".ljust(width), *passed])
    for scenario in scenarios:
        cells = (str(run.get(scenario, NOT_RUN)).rjust(len(name)) for name, run in passed.items())
        yield " ".join([scenario.ljust(width), *cells])

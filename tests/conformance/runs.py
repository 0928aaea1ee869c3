"""The runs of the conformance suite that must be clean, their server, and their known checks."""

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
SKIPPED = "tasks-status-notifications: tasks-status-notifications: SKIPPED"  # always, for any server


@contextlib.contextmanager
def subject(folder: Path) -> Iterator[str]:
    """Yield the URL of a server with a copy of the suite's plugins, which change their own folder."""
    plugins = folder / "plugins"
    shutil.copytree(HERE / "plugins", plugins, ignore=shutil.ignore_patterns("__pycache__"))
    with site(folder / "site", "--plugins", str(plugins), "--skills", str(HERE / "skills")) as listening:
        yield f"{listening.url}/mcp"


@contextlib.contextmanager
def mounted(folder: Path, protocol: str) -> Iterator[str]:
    """Yield the URL of a server that has nothing but what it mounts: `subject`, in the era of `protocol`. It holds
    nothing that changes, since the suite has the server change its lists."""
    folder.mkdir()
    config = folder / "mounts.toml"
    with subject(folder / "far") as url:
        keys = {"url": url, "prefix": "", "protocol": protocol, "on_change": "allow"}
        config.write_text("[mounts.far]\n" + "".join(f'{key} = "{value}"\n' for key, value in keys.items()))
        with site(folder / "site", "--config", str(config), "--tools", "!*") as listening:
            yield f"{listening.url}/mcp"


def carry_out(name: str, url: str, folder: Path) -> Run:
    """Run the suite as `name` against `url`; `folder` is an empty one for its output."""
    version, *options = RUNS[name]
    return run(version, url, folder, *options)


def faults(found: Run) -> list[str]:
    """Return the faults that a run must not have."""
    return [fault for fault in found.faults() if not fault.startswith(SKIPPED)]


def deviations(name: str, found: Run) -> list[str]:
    """Return the differences from the known checks; a missing scenario counts as none."""
    known, passed = expected()[name], found.passed
    return [
        f"{scenario}: {passed.get(scenario, 'no')} checks passed, {known.get(scenario, 'none')} should"
        for scenario in sorted({*known, *passed})
        if passed.get(scenario) != known.get(scenario)
    ]


def expected() -> dict[str, dict[str, int]]:
    """Return the checks each run must pass, as counts per scenario, from the table beside this file."""
    head, *rows = (line.split() for line in TABLE.read_text().splitlines() if not line.startswith("#"))
    return {
        name: {row[0]: int(row[column]) for row in rows if row[column] != NOT_RUN}
        for column, name in enumerate(head[1:], 1)
    }


def table(passed: Mapping[str, Mapping[str, int]]) -> Iterator[str]:
    """Yield the lines of such a table."""
    scenarios = sorted({scenario for run in passed.values() for scenario in run})
    width = max(map(len, scenarios))
    yield " ".join(["scenario".ljust(width), *passed])
    for scenario in scenarios:
        cells = (str(run.get(scenario, NOT_RUN)).rjust(len(name)) for name, run in passed.items())
        yield " ".join([scenario.ljust(width), *cells])

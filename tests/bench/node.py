"""Measure what a node costs beside commands in process: `Bash true` under `bwrap` in turns, a bare round trip, reading
100 MB back, the memory of an idle node, and another person's commands beside a flood of output that is not read."""

import asyncio
import os
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import uvloop

from tests.bench.driver import Cores
from tests.bench.measure import MEMORY, SHELL, Figures
from tests.bench.people import Person, SandboxServer, town
from tests.bench.report import Target, ratios, table
from tests.server.features.nodes.nodes import NodeProcess, remote_workspace, running_node

IN_PROCESS, AT_NODE = "in process", "at a node"
ROUND_TRIP, READ = "round trip", "read"
QUIET, FLOODED = "p99", "p99 beside a flood"
UIDS = "20000-29999"  # no server's default, nor those of the server beside it
LARGE = 100_000_000  # bytes
WARM = 20  # calls
TRIPS = 1_000
ECHOES = 2  # times the calls: a p99 needs many
FLOOD = {"command": "exec head -c 10G /dev/zero", "timeout": 600_000}  # ms
TARGETS = (
    Target("Bash true at a node: at most 1.15 × the time in process", SHELL, IN_PROCESS, 1.15, False, side=AT_NODE),
    Target("a round trip to a node: at most 0.5 ms", ROUND_TRIP, "", 0.5, False, side=AT_NODE),
    Target("100 MB from a node: at least 100 MB/s", READ, "", 100, True, side=AT_NODE),
    Target("an idle node: at most 40 MB", MEMORY, "", 40, False, side=AT_NODE),
    Target("p99 beside a flood: at most 3 × the quiet p99", FLOODED, AT_NODE, 3.0, False, QUIET, AT_NODE),
)


def measure(folder: Path, rounds: int, calls: int, tell: Callable[[str], None]) -> Figures:
    cores = Cores()  # unpinned: commands have the whole machine
    cores.pinned = False
    figures = Figures()
    folder.chmod(0o755)  # other users have to pass
    for turn in range(rounds):
        tell(f"node, round {turn + 1} of {rounds}")
        with running_node(folder / f"node-{turn}", "--sandbox", "bwrap", "--sandbox-uids", UIDS) as node:
            figures.add(AT_NODE, MEMORY, _resident(node))
            with (
                town(folder / f"in-process-{turn}", cores) as ours,
                town(folder / f"gateway-{turn}", cores, "--node", str(node.address)) as gateway,
            ):
                _compare(figures, {IN_PROCESS: ours.person("ada"), AT_NODE: gateway.person("ada")}, calls)
            with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
                runner.run(_use_link(figures, node))
            with town(folder / f"flooded-{turn}", cores, "--node", str(node.address)) as gateway:
                _flood(figures, gateway, calls)  # last: the command goes on when its server ends
    return figures


def report(figures: Figures) -> str:
    rows = [["", "Bash true, ms", "round trip, ms", "100 MB, MB/s", "idle, MB", "p99, ms", "beside a flood"]]
    rows.append([IN_PROCESS, f"{figures.median(IN_PROCESS, SHELL):.2f}", "", "", "", "", ""])
    shown = (SHELL, ROUND_TRIP, READ, MEMORY, QUIET, FLOODED)
    rows.append([AT_NODE, *(f"{figures.median(AT_NODE, each):.2f}" for each in shown)])
    return "\n".join((*table(rows), "", *ratios(figures, TARGETS)))


def _compare(figures: Figures, people: dict[str, Person], calls: int) -> None:
    """Measure the same call at each side in turns. Of each the first quartile counts: others use the machine, too."""
    times: dict[str, list[float]] = {side: [] for side in people}
    for number in range(WARM + calls):
        for side, person in people.items():
            seconds, _ = person.call("Bash", command="true")
            if number >= WARM:
                times[side].append(seconds)
    for side, taken in times.items():
        figures.add(side, SHELL, statistics.quantiles(taken, n=4)[0] * 1e3)


def _flood(figures: Figures, gateway: SandboxServer, calls: int) -> None:
    """Measure a person's commands before and beside another's, whose client reads none of its flood of output."""
    stuck, bob = gateway.person("eve"), gateway.person("bob")
    stuck.call("Bash", command="true")

    def time_echoes() -> float:
        times = [bob.call("Bash", command="echo")[0] for _ in range(WARM + ECHOES * calls)][WARM:]
        return statistics.quantiles(times, n=100)[98] * 1e3

    figures.add(AT_NODE, QUIET, time_echoes())
    stuck.send("tools/call", {"name": "Bash", "arguments": FLOOD, "_meta": {"progressToken": "flood"}})
    figures.add(AT_NODE, FLOODED, time_echoes())


async def _use_link(figures: Figures, node: NodeProcess) -> None:
    async with remote_workspace(node) as mine:
        trips = [await _time_trip(mine) for _ in range(TRIPS)]
        figures.add(AT_NODE, ROUND_TRIP, statistics.median(trips) * 1e3)
        path = mine.root / "large"
        path.write_bytes(os.urandom(LARGE))
        path.chmod(0o644)
        begun, size = time.perf_counter(), 0
        with await mine.open_file(str(path), LARGE, anywhere=False) as file:
            async for piece in file.pieces():
                size += len(piece)
        assert size == LARGE
        figures.add(AT_NODE, READ, LARGE / 1e6 / (time.perf_counter() - begun))


async def _time_trip(mine: Any) -> float:
    begun = time.perf_counter()
    await mine.list()
    return time.perf_counter() - begun


def _resident(node: NodeProcess) -> float:
    status = Path(f"/proc/{node.process.pid}/status").read_text()
    return int(status.partition("VmRSS:")[2].split()[0]) * 1024 / 1e6

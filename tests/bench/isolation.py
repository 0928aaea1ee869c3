"""Measure the cost of isolation: `Bash true` under `bwrap` beside bare spawns of bwrap and bash; a principal's first
command; an idle sandbox; and a server's start with and without sandboxes."""

import os
import re
import shutil
import statistics
import subprocess
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tests.bench.driver import Cores
from tests.bench.people import SandboxServer, town

BARE = ("bash", "-c", "true")
WRAPPED = ("bwrap", "--unshare-all", "--ro-bind", "/", "/", "--proc", "/proc", "--dev", "/dev", *BARE)
TARGET = 3.0  # ms that Toolgate may add to a bare bwrap
NEWCOMERS = 8


@dataclass
class Cost:
    """Seconds of `Bash true`, a bare bwrap, a bare bash, a principal's first command, a server's start with and without
    a sandbox; `held`: KiB (PSS) of an idle sandbox."""

    ours: list[float] = field(default_factory=list)
    wrapped: list[float] = field(default_factory=list)
    bare: list[float] = field(default_factory=list)
    first: list[float] = field(default_factory=list)
    start: list[float] = field(default_factory=list)
    start_without: list[float] = field(default_factory=list)
    held: float = 0.0


def measure(folder: Path, cores: Cores, rounds: int, calls: int, tell: Callable[[str], None]) -> Cost:
    cores = Cores()  # unpinned: commands have the whole machine, like the bare spawns
    cores.pinned = False
    cost = Cost()
    for turn in range(rounds):
        tell(f"isolation, round {turn + 1} of {rounds}")
        for options, times in (((), cost.start), (("--sandbox", "none", "--accept-unsandboxed"), cost.start_without)):
            begun = time.perf_counter()
            with town(folder / f"{turn}-{len(options)}", cores, *options) as place:
                times.append(time.perf_counter() - begun)
                if not options:
                    _commands(place, cores, calls, cost)
                    cost.held = _newcomers(place, cost)
    return cost


def _commands(place: SandboxServer, cores: Cores, calls: int, cost: Cost) -> None:
    ada = place.person("ada")
    ada.call("Bash", command="true")
    for _ in range(calls):
        cost.ours.append(ada.call("Bash", command="true")[0])
        cores.server()
        cost.wrapped.append(_spawned(WRAPPED))
        cost.bare.append(_spawned(BARE))
        cores.driver()


def _newcomers(place: SandboxServer, cost: Cost) -> float:
    """Return the KiB of a sandbox."""
    before = _pss(place.site.process.pid)
    for number in range(NEWCOMERS):
        cost.first.append(place.person(f"newcomer-{number}").call("Bash", command="true")[0])
    return (_pss(place.site.process.pid) - before) / NEWCOMERS


def _pss(server: int) -> int:
    """Return the PSS of all processes below the server, without itself."""
    total, pids = 0, _children(server)
    while pids:
        pid = pids.pop()
        pids += _children(pid)
        try:
            rollup = Path(f"/proc/{pid}/smaps_rollup").read_text()
        except OSError:
            continue
        total += int(re.findall(r"^Pss:\s+(\d+)", rollup, re.M)[0])
    return total


def _children(pid: int) -> list[int]:
    found: list[int] = []
    for task in Path(f"/proc/{pid}/task").glob("*/children"):
        found += map(int, task.read_text().split())
    return found


def _spawned(words: Sequence[str]) -> float:
    """Return the seconds to start it, read its output and collect it."""
    program = shutil.which(words[0]) or words[0]
    begun = time.perf_counter()
    done = subprocess.run([program, *words[1:]], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False)
    taken = time.perf_counter() - begun
    if done.returncode != 0:
        raise RuntimeError(f"{os.path.basename(program)}: {done.stdout!r}")
    return taken


def report(cost: Cost) -> str:
    ours, wrapped, bare = (statistics.median(times) * 1e3 for times in (cost.ours, cost.wrapped, cost.bare))
    start, without = (statistics.median(times) * 1e3 for times in (cost.start, cost.start_without))
    return "\n".join(
        (
            f"Bash true, bwrap         {ours:7.2f} ms",
            f"bare bwrap bash -c true  {wrapped:7.2f} ms",
            f"bare bash -c true        {bare:7.2f} ms",
            f"ours adds {ours - wrapped:.2f} ms to the bare bwrap; target at most {TARGET:g}: "
            + ("met" if ours - wrapped <= TARGET else "MISSED"),
            f"first command of a principal {statistics.median(cost.first) * 1e3:.0f} ms; "
            f"an idle sandbox holds {cost.held / 1024:.1f} MiB (PSS)",
            f"start of a server {start:.0f} ms, without a sandbox {without:.0f} ms",
        )
    )

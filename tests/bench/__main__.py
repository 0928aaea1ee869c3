"""`make bench`: Toolgate beside the official SDKs and the bare loop, in one run.

Exits 0 unless it broke. With --check it exits 1 if a ratio is worse than the kept one in three tries.
"""

import argparse
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from pathlib import Path

import tests.bench.growth.measure as growth_measure
import tests.bench.http.measure as http_measure
import tests.bench.http.report as http_report
import tests.bench.http.sides as http_sides
import tests.bench.mounts.measure as mounts_measure
import tests.bench.mounts.report as mounts_report
from tests.bench import isolation, kept, neighbours, node, reading, search, sides
from tests.bench.driver import Cores
from tests.bench.gold import measure as gold_measure
from tests.bench.gold import report as gold_report
from tests.bench.gold.measure import GoldFolders
from tests.bench.growth.rows import ROWS
from tests.bench.http import cases
from tests.bench.http.measure import WebEffort
from tests.bench.measure import Effort, Figures, measure
from tests.bench.mounts import connected
from tests.bench.mounts.measure import MountEffort
from tests.bench.report import TARGETS, report
from tests.bench.session import measure as session_measure
from tests.bench.session import report as session_report

QUICK = Effort(rounds=1, starts=1, calls=100, warm=0.15, burst=0.05, slices=2, commands=10)
QUICK_HTTP = WebEffort(
    rounds=1, seconds=0.15, warm=0.05, slices=3, case_slices=2, held_rounds=1, held=200, settle=0.3, idle=1.0
)
QUICK_MOUNTS = MountEffort(rounds=1, slices=2, calls=10, warm=0.1, burst=0.05)


UNPINNED = ("gold", "growth", "isolation", "neighbours", "node", "session")  # commands use the whole machine
ONCE = ("gold", "session")  # tokens and texts are the same each time


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.bench", description=__doc__)
    parser.add_argument("--rounds", type=int, default=4, help="medians are over this many")
    parser.add_argument("--quick", action="store_true", help="one short round, for a first look")
    parser.add_argument("--only", choices=PARTS, help="one of the parts")
    parser.add_argument("--check", action="store_true", help="compare the ratios to the SDKs with the kept ones")
    parser.add_argument("--keep", action="store_true", help="write the ratios to the SDKs to kept.json")
    for option, source in gold_measure.FOLDERS.items():
        parser.add_argument(option, type=Path, metavar="FOLDER", help=f"of {source}, for gold")
    options = parser.parse_args()
    folders = GoldFolders(options.readability, options.trafilatura, options.manuals)
    measures = PARTS | {"gold": partial(_gold, folders)}
    rounds = 1 if options.quick else max(1, options.rounds)
    parts: Iterable[str] = CHECKED if options.check or options.keep else PARTS
    worse: list[str] = []
    ratios: dict[str, float] = {}
    for part in parts if options.only is None else (options.only,):
        ratios |= _run(part, rounds, options.quick, measures)
        if options.check and part in CHECKED:
            worse += _check(part, ratios, rounds, options.quick)
    if options.keep:
        kept.write_kept(ratios if options.only is None else kept.read_kept() | ratios)
    sys.exit("\n".join(("worse than kept, in each try:", *worse)) if worse else 0)


def _check(part: str, ratios: dict[str, float], rounds: int, quick: bool) -> list[str]:
    """Return a sentence about each ratio that is worse than the kept one, in this run and those that follow it."""
    known, targets = kept.read_kept(), CHECKED[part]
    worse = kept.find_worse(ratios, known, targets)
    for _ in range(kept.TRIES - 1):
        if worse:
            again = kept.find_worse(_run(part, rounds, quick, PARTS), known, targets)
            worse = {says: again[says] for says in worse if says in again}
    return list(worse.values())


def _run(part: str, rounds: int, quick: bool, measures: "Mapping[str, Measure]") -> dict[str, float]:
    """Measure a part and print its tables. Return its ratios, if it has any to keep."""
    cores = Cores()
    where = "server and client each pinned to a core" if cores.pinned else "NOT pinned: fewer than two cores"
    if part in UNPINNED:
        where = "all share the machine's cores"
    begun = time.monotonic()
    ratios: dict[str, float] = {}
    with tempfile.TemporaryDirectory(prefix="toolgate-bench-") as folder:
        measured = measures[part](Path(folder), cores, rounds, quick)
    if isinstance(measured, Figures):
        ratios = kept.ratios_of(measured, CHECKED[part])
        measured = REPORTS[part](measured)
    _tell("")
    times = "once" if part in ONCE else f"{rounds} interleaved rounds"
    print(f"{part}: {times} in {time.monotonic() - begun:.0f} s{'' if part in ONCE else ', medians'}; {where}.\n")
    print(measured, end="\n\n", flush=True)
    return ratios


def _stdio(folder: Path, cores: Cores, rounds: int, quick: bool) -> Figures:
    effort = QUICK if quick else Effort(rounds=rounds)
    return measure(sides.prepared(folder, cores), effort, _tell)


def _http(folder: Path, cores: Cores, rounds: int, quick: bool) -> Figures:
    effort = QUICK_HTTP if quick else WebEffort(rounds=rounds)
    return http_measure.measure(http_sides.prepared(folder, cores), effort, _tell)


def _cases(folder: Path, cores: Cores, rounds: int, quick: bool) -> Figures:
    effort = QUICK_HTTP if quick else WebEffort(rounds=rounds)
    return cases.measure(http_sides.prepared(folder, cores), effort, _tell)


def _search(folder: Path, cores: Cores, rounds: int, quick: bool) -> str:
    return search.report(search.measure(rounds, 0.2 if quick else 1.0, _tell))


def _reading(folder: Path, cores: Cores, rounds: int, quick: bool) -> str:
    return reading.report(reading.measure(rounds, 2 if quick else 5, _tell))


def _isolation(folder: Path, cores: Cores, rounds: int, quick: bool) -> str:
    return isolation.report(isolation.measure(folder, cores, rounds, 20 if quick else 100, _tell))


def _neighbours(folder: Path, cores: Cores, rounds: int, quick: bool) -> str:
    cores.free()
    return neighbours.report(neighbours.measure(folder, rounds, 20 if quick else 60, _tell))


def _node(folder: Path, cores: Cores, rounds: int, quick: bool) -> Figures:
    cores.free()
    return node.measure(folder, rounds, 60 if quick else 200, _tell)


def _mounts(folder: Path, cores: Cores, rounds: int, quick: bool) -> str:
    effort = QUICK_MOUNTS if quick else MountEffort(rounds=rounds)
    return mounts_report.report(mounts_measure.measure(folder, cores, effort, _tell))


def _connected(folder: Path, cores: Cores, rounds: int, quick: bool) -> str:
    effort = QUICK_MOUNTS if quick else MountEffort(rounds=rounds)
    return connected.report(connected.measure(folder, cores, effort, _tell))


def _session(folder: Path, cores: Cores, rounds: int, quick: bool) -> str:
    cores.free()
    return session_report.report(session_measure.measure(folder, _tell))


def _gold(folders: GoldFolders, folder: Path, cores: Cores, rounds: int, quick: bool) -> str:
    cores.free()
    return gold_report.report(gold_measure.measure(folders, 20 if quick else 1, _tell))


def _growth(folder: Path, cores: Cores, rounds: int, quick: bool) -> str:
    cores.free()
    return growth_measure.report(growth_measure.measure(folder, ROWS, rounds, _tell))


CHECKED = {"stdio": TARGETS, "http": http_report.TARGETS, "cases": cases.TARGETS, "node": node.TARGETS}
REPORTS = {"stdio": report, "http": http_report.report, "cases": cases.report, "node": node.report}
Measure = Callable[[Path, Cores, int, bool], Figures | str]
PARTS: dict[str, Measure] = {
    "stdio": _stdio,
    "http": _http,
    "cases": _cases,
    "search": _search,
    "reading": _reading,
    "isolation": _isolation,
    "neighbours": _neighbours,
    "node": _node,
    "mounts": _mounts,
    "connected": _connected,
    "session": _session,
    "gold": partial(_gold, GoldFolders()),
    "growth": _growth,
}


def _tell(text: str) -> None:
    if sys.stderr.isatty():
        print(f"\r\033[K{text}", end="", file=sys.stderr, flush=True)
    elif text:
        print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()

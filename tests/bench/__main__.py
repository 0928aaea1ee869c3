"""`make bench`: Toolgate beside the official SDKs and the bare loop, in one run. Exits 0 unless it broke."""

import argparse
import sys
import tempfile
import time
from pathlib import Path

import tests.bench.http.measure as http_measure
import tests.bench.http.report as http_report
import tests.bench.http.sides as http_sides
from tests.bench import isolation, neighbours, reading, search, sides
from tests.bench.driver import Cores
from tests.bench.http.measure import WebEffort
from tests.bench.measure import Effort, measure
from tests.bench.report import report

QUICK = Effort(rounds=1, starts=1, calls=100, seconds=0.15, commands=10)
QUICK_HTTP = WebEffort(rounds=1, seconds=0.15, warm=0.05, held_rounds=1, held=200, settle=0.3, idle=1.0)


UNPINNED = ("isolation", "neighbours")  # commands use the whole machine


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.bench", description=__doc__)
    parser.add_argument("--rounds", type=int, default=4, help="medians are over this many")
    parser.add_argument("--quick", action="store_true", help="one short round, for a first look")
    parser.add_argument("--only", choices=PARTS, help="one of the parts")
    options = parser.parse_args()
    cores = Cores()
    rounds = 1 if options.quick else max(1, options.rounds)
    for part in PARTS if options.only is None else (options.only,):
        where = "server and client each pinned to a core" if cores.pinned else "NOT pinned: fewer than two cores"
        if part in UNPINNED:
            where = "all share the machine's cores"
        begun = time.monotonic()
        with tempfile.TemporaryDirectory(prefix="toolgate-bench-") as folder:
            told = PARTS[part](Path(folder), cores, rounds, options.quick)
        _tell("")
        print(f"{part}: {rounds} interleaved rounds in {time.monotonic() - begun:.0f} s, medians; {where}.\n")
        print(told, end="\n\n")


def _stdio(folder: Path, cores: Cores, rounds: int, quick: bool) -> str:
    effort = QUICK if quick else Effort(rounds=rounds)
    return report(measure(sides.prepared(folder, cores), effort, _tell))


def _http(folder: Path, cores: Cores, rounds: int, quick: bool) -> str:
    effort = QUICK_HTTP if quick else WebEffort(rounds=rounds)
    return http_report.report(http_measure.measure(http_sides.prepared(folder, cores), effort, _tell))


def _search(folder: Path, cores: Cores, rounds: int, quick: bool) -> str:
    return search.report(search.measure(rounds, 0.2 if quick else 1.0, _tell))


def _reading(folder: Path, cores: Cores, rounds: int, quick: bool) -> str:
    return reading.report(reading.measure(rounds, 2 if quick else 5, _tell))


def _isolation(folder: Path, cores: Cores, rounds: int, quick: bool) -> str:
    return isolation.report(isolation.measure(folder, cores, rounds, 20 if quick else 100, _tell))


def _neighbours(folder: Path, cores: Cores, rounds: int, quick: bool) -> str:
    cores.free()
    return neighbours.report(neighbours.measure(folder, rounds, 20 if quick else 60, _tell))


PARTS = {
    "stdio": _stdio,
    "http": _http,
    "search": _search,
    "reading": _reading,
    "isolation": _isolation,
    "neighbours": _neighbours,
}


def _tell(text: str) -> None:
    if sys.stderr.isatty():
        print(f"\r\033[K{text}", end="", file=sys.stderr, flush=True)
    elif text:
        print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()

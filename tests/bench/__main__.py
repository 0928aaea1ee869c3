"""`make bench`: Toolgate beside the official SDKs and the bare loop, in one run. Exits 0 unless it broke."""

import argparse
import sys
import tempfile
import time
from pathlib import Path

from tests.bench.driver import Cores
from tests.bench.measure import Effort, measure
from tests.bench.report import report
from tests.bench.sides import prepared

QUICK = Effort(rounds=1, starts=1, calls=100, seconds=0.15, commands=10)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.bench", description=__doc__)
    parser.add_argument("--rounds", type=int, default=5, help="medians are over this many")
    parser.add_argument("--quick", action="store_true", help="one short round, for a first look")
    options = parser.parse_args()
    effort = QUICK if options.quick else Effort(rounds=max(1, options.rounds))
    cores = Cores()
    begun = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="toolgate-bench-") as folder:
        figures = measure(prepared(Path(folder), cores), effort, _tell)
    _tell("")
    where = "server and client each pinned to a core" if cores.pinned else "NOT pinned: fewer than two cores"
    print(f"{effort.rounds} interleaved rounds in {time.monotonic() - begun:.0f} s, medians; {where}.\n")
    print(report(figures))


def _tell(text: str) -> None:
    if sys.stderr.isatty():
        print(f"\r\033[K{text}", end="", file=sys.stderr, flush=True)
    elif text:
        print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()

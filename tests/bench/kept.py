"""Compare the ratios that a user can feel with those kept in kept.json from an earlier run; the others are printed."""

from collections.abc import Iterable, Sequence
from pathlib import Path

import msgspec

from tests.bench.measure import Figures
from tests.bench.report import Target

FILE = Path(__file__).with_name("kept.json")
WORSE = 1.15  # times a kept ratio: less is noise, or not felt
FELT = (  # start, memory, calls a second beside both SDKs, and a command
    "start-up: under 2 × import asyncio",
    "start-up: ahead of the Python SDK",
    "start-up: ahead of the TypeScript SDK",
    "idle memory: under 0.45 of the Python SDK's",
    "idle memory: under half of the TypeScript SDK's",
    "calls at 8 clients: at least 4 × the Python SDK's",
    "calls at 8 clients: at least 2.5 × the TypeScript SDK's",
    "Bash true: at most 3 × a bare spawn",
)
TRIES = 3  # a ratio is worse if it is so in each


def read_kept() -> dict[str, float]:
    """Return the kept ratio of each target, by its words."""
    return msgspec.json.decode(FILE.read_bytes(), type=dict[str, float])


def write_kept(ratios: dict[str, float]) -> None:
    """Write those of the ratios that are felt."""
    ratios = {says: ratios[says] for says in FELT if says in ratios}
    FILE.write_bytes(msgspec.json.format(msgspec.json.encode(ratios)) + b"\n")


def ratios_of(figures: Figures, targets: Iterable[Target]) -> dict[str, float]:
    return {target.says: round(target.ratio(figures), 3) for target in targets}


def find_worse(ratios: dict[str, float], kept: dict[str, float], targets: Sequence[Target]) -> dict[str, str]:
    """Return the targets whose ratio is worse than the kept one by more than noise, and a sentence about each."""
    worse = {}
    for target in targets:
        now, before = ratios[target.says], kept.get(target.says)
        if before is not None and (now * WORSE < before if target.at_least else now > before * WORSE):
            worse[target.says] = f"{target.says}: {now:.2f}, and {before:.2f} is kept"
    return worse

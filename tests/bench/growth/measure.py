"""Measure rows of the growth table: the processor time of an action beside N, 4 N and 16 N of what grows."""

import math
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path

FLAT = 0.2  # the highest slope between 4 N and 16 N of what does not grow; work that doubles with N has 1.0
FACTOR = 4  # between two sizes
TINY = 1e-7  # seconds: for an action too short for the clock


@dataclass(frozen=True)
class Trial:
    """An action beside what a row has prepared.

    - `act`: does it once
    - `clock`: returns the seconds of processor time used so far, by default those of this process
    """

    act: Callable[[], object]
    clock: Callable[[], float] = time.process_time


@dataclass(frozen=True)
class Row:
    """One line of the table.

    - `says`: the action and what grows, for people
    - `first`: the smallest N
    - `prepare`: called with an empty folder and N, returns a context manager of the trial
    - `most`: the highest slope between 4 N and 16 N
    - `actions`: how often a measurement does the action
    """

    says: str
    first: int
    prepare: Callable[[Path, int], AbstractContextManager[Trial]]
    most: float = FLAT
    actions: int = 20

    @property
    def sizes(self) -> tuple[int, int, int]:
        return self.first, self.first * FACTOR, self.first * FACTOR**2


@dataclass(frozen=True)
class Growth:
    """The seconds of processor time that one action took at each size of a row."""

    row: Row
    costs: Sequence[float]

    @property
    def slopes(self) -> list[float]:
        """Return the slope from each size to the next: 0 is flat, 1 in proportion to the size."""
        pairs = zip(self.costs, self.costs[1:], strict=False)
        return [math.log(max(after, TINY) / max(before, TINY)) / math.log(FACTOR) for before, after in pairs]

    @property
    def is_met(self) -> bool:
        return self.slopes[-1] < self.row.most


def measure(folder: Path, rows: Sequence[Row], rounds: int, tell: Callable[[str], None]) -> list[Growth]:
    """Measure each row. The cheapest of the rounds counts: other processes only add to a cost."""
    found = list[Growth]()
    for number, row in enumerate(rows):
        costs = list[float]()
        for size in row.sizes:
            tell(f"{row.says}: {size:,}")
            place = folder / f"{number}-{size}"
            place.mkdir(parents=True)
            costs.append(_measure_size(row, place, size, rounds))
        found.append(Growth(row, costs))
    return found


def _measure_size(row: Row, folder: Path, size: int, rounds: int) -> float:
    with row.prepare(folder, size) as trial:
        trial.act()  # unmeasured: it fills the caches
        return min(_measure_actions(trial, row.actions) for _ in range(rounds))


def _measure_actions(trial: Trial, count: int) -> float:
    begun = trial.clock()
    for _ in range(count):
        trial.act()
    return (trial.clock() - begun) / count


def report(growths: Sequence[Growth]) -> str:
    """Return the table: the cost at each size, the last slope, and whether it is as low as it is to be."""
    width = max(len(growth.row.says) for growth in growths)
    return "\n".join(_format_growth(growth, width) for growth in growths)


def _format_growth(growth: Growth, width: int) -> str:
    sizes = " ".join(
        f"{size:>7,}: {cost * 1e3:8.2f} ms" for size, cost in zip(growth.row.sizes, growth.costs, strict=True)
    )
    verdict = "met" if growth.is_met else "MISSED"
    target = "flat" if growth.row.most == FLAT else f"under {growth.row.most:g}"
    return f"{growth.row.says:<{width}}  {sizes}  slope {growth.slopes[-1]:5.2f}, to be {target}: {verdict}"

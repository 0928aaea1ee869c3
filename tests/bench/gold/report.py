"""Print the figures of the gold sets, reader by reader."""

import statistics
from collections.abc import Iterable, Sequence

from tests.bench.gold.measure import GoldFigures, Reading
from tests.bench.gold.readers import OURS, TRAFILATURA
from tests.bench.gold.scores import Share
from tests.bench.report import table

LEAST_LENGTH = 200  # characters that an answer of trafilatura's counts for at least
TARGETS = (
    "targets: F1 at least 0.94; wanted at least 0.96 with unwanted at most 0.135; length at the 90th percentile at "
    "most 2.5 times trafilatura's; every pre, all cells but one, 98 of 100 beginnings, around at most 1 in 20"
)


def report(figures: GoldFigures) -> str:
    blocks: list[list[str]] = []
    for name, by_reader in figures.readings.items():
        rows = [HEADS[name] + LENGTH_HEAD, *(ROWS[name](reader, some) for reader, some in by_reader.items())]
        for row, (reader, some) in zip(rows[1:], by_reader.items(), strict=True):
            row += _effort(some, by_reader[TRAFILATURA] if reader == OURS else None)
        count = len(next(iter(by_reader.values())))
        blocks.append([f"{name}, {count} pages", "", *table(rows)])
    blocks += [[f"left out: {line}" for line in figures.left_out]] if figures.left_out else []
    blocks += [[TARGETS]] if figures.readings else []
    return "\n\n".join("\n".join(lines) for lines in blocks)


LENGTH_HEAD = ["length, median", "p90", "CPU ms, mean", "median"]
HEADS = {
    "articles": ["reader", "recall", "precision", "F1", "F1 of half 0", "half 1"],
    "strings": ["reader", "wanted", "unwanted", "half 0", "half 1"],
    "manuals": ["reader", "pre", "cells", "paragraphs", "beginnings", "around"],
}


def _article_row(reader: str, readings: Sequence[Reading]) -> list[str]:
    overlaps = [reading.overlap for reading in readings]
    halves = [[reading.overlap.f1 for reading in readings if reading.half == half] for half in (0, 1)]
    columns: list[Iterable[float]] = [
        [overlap.recall for overlap in overlaps],
        [overlap.precision for overlap in overlaps],
        [overlap.f1 for overlap in overlaps],
        *halves,
    ]
    return [reader, *(_mean(column) for column in columns)]


def _string_row(reader: str, readings: Sequence[Reading]) -> list[str]:
    halves = [[reading for reading in readings if reading.half == half] for half in (0, 1)]
    both = [f"{_sum_wanted(half)} / {_sum_unwanted(half)}" for half in halves]
    return [reader, _sum_wanted(readings), _sum_unwanted(readings), *both]


def _manual_row(reader: str, readings: Sequence[Reading]) -> list[str]:
    parts = HEADS["manuals"][1:]
    return [reader, *(str(sum((reading.parts[part] for reading in readings), Share())) for part in parts)]


ROWS = {"articles": _article_row, "strings": _string_row, "manuals": _manual_row}


def _sum_wanted(readings: Iterable[Reading]) -> str:
    return f"{float(sum((reading.wanted for reading in readings), Share())):.3f}"


def _sum_unwanted(readings: Iterable[Reading]) -> str:
    return f"{float(sum((reading.unwanted for reading in readings), Share())):.3f}"


def _mean(values: Iterable[float]) -> str:
    known = list(values)
    return f"{statistics.fmean(known):.3f}" if known else "-"


def _effort(readings: Sequence[Reading], peer: Sequence[Reading] | None) -> list[str]:
    """Return the length over the peer's, at the median and the 90th percentile, and the processor time a page."""
    times = [reading.seconds * 1000 for reading in readings]
    effort = [f"{statistics.fmean(times):.1f}", f"{statistics.median(times):.1f}"]
    if peer is None:
        return ["", "", *effort]
    ratios = sorted(
        reading.length / max(LEAST_LENGTH, other.length) for reading, other in zip(readings, peer, strict=True)
    )
    return [f"{statistics.median(ratios):.2f}", f"{ratios[int(0.9 * len(ratios))]:.2f}", *effort]

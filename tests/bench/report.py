"""Format the figures as two tables: absolutes, and ratios against their targets."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tests.bench import measure
from tests.bench.measure import (
    BARE_SHELL,
    CALLS,
    CPU,
    IMPORT,
    LARGE,
    LISTS,
    MEMORY,
    SEQUENTIAL,
    SHELL,
    START,
    YARDSTICKS,
    Figures,
)
from tests.bench.sides import FLOOR, OURS, PYTHON, TYPESCRIPT

COLUMNS = {  # metric → heading
    START: "start to tools/list, ms",
    MEMORY: "idle RSS, MB",
    SEQUENTIAL: "sequential p50, µs",
    CALLS: f"calls/s, {measure.WINDOW} in flight",
    CPU: "CPU µs a call",
    LISTS: "tools/list/s",
    LARGE: "100 KB texts/s",
}


@dataclass(frozen=True)
class Target:
    """A ratio of Toolgate's figure to another's in one run, and its limit: at most or at least `limit`. Without another
    (`to` is ""), the figure itself."""

    says: str
    metric: str
    to: str
    limit: float
    at_least: bool
    of: str = ""  # another metric of the other side, instead of the same one
    side: str = OURS

    def ratio(self, figures: Figures) -> float:
        if not self.to:
            return figures.median(self.side, self.metric)
        return figures.ratio(self.side, self.metric, self.to, self.of or self.metric)

    def met(self, ratio: float) -> bool:
        return ratio >= self.limit if self.at_least else ratio < self.limit


TARGETS = (
    Target("start-up: under 2 × import asyncio", START, YARDSTICKS, 2.0, False, IMPORT),
    Target("start-up: ahead of the Python SDK", START, PYTHON, 1.0, False),
    Target("start-up: ahead of the TypeScript SDK", START, TYPESCRIPT, 1.0, False),
    Target("idle memory: under 0.45 of the Python SDK's", MEMORY, PYTHON, 0.45, False),
    Target("idle memory: under half of the TypeScript SDK's", MEMORY, TYPESCRIPT, 0.5, False),
    Target("pipelined calls: at least 25 × the Python SDK's", CALLS, PYTHON, 25.0, True),
    Target("pipelined calls: at least 1.5 × the TypeScript SDK's", CALLS, TYPESCRIPT, 1.5, True),
    Target("pipelined calls: under 0.06 of the Python SDK's processor time", CPU, PYTHON, 0.06, False),
    Target("sequential latency: at most 1.35 × the bare loop's", SEQUENTIAL, FLOOR, 1.35, False),
    Target("Bash true: at most 3 × a bare spawn", SHELL, YARDSTICKS, 3.0, False, BARE_SHELL, YARDSTICKS),
    Target("tools/list: at least 6 × the TypeScript SDK's", LISTS, TYPESCRIPT, 6.0, True),
)


def report(figures: Figures) -> str:
    """Return both tables and the shell's line."""
    sides = (OURS, PYTHON, TYPESCRIPT, FLOOR)
    return "\n".join(
        (
            *absolutes(figures, sides, COLUMNS),
            _yardstick(figures),
            "",
            *relatives(figures, (OURS, PYTHON, TYPESCRIPT), {CALLS: "calls/s", CPU: "CPU a call"}),
            "",
            *ratios(figures, TARGETS),
            "",
            _shell(figures),
        ),
    )


def absolutes(figures: Figures, sides: Sequence[str], columns: Mapping[str, str]) -> list[str]:
    """Return a line per side; a missing figure is blank."""
    rows = [["", *columns.values()]]
    for side in sides:
        rows.append([side, *(_number(figures.median(side, at)) if figures.has(side, at) else "" for at in columns)])
    return table(rows)


def relatives(figures: Figures, sides: Sequence[str], columns: Mapping[str, str]) -> list[str]:
    """Return a line per side: its figures as multiples of the floor's, and of ours."""
    rows = [["", *(f"{heading} / {to}'s" for heading in columns.values() for to in (FLOOR, OURS))]]
    for side in sides:
        multiples = (figures.ratio(side, at, to, at) for at in columns for to in (FLOOR, OURS))
        rows.append([side, *(f"{multiple:.2f}" for multiple in multiples)])
    return table(rows)


def ratios(figures: Figures, targets: Sequence[Target]) -> list[str]:
    """Return a line per target, with whether it is met."""
    rows = [["", "ratio", "wanted", ""]]
    for target in targets:
        ratio = target.ratio(figures)
        wanted = f"{'≥' if target.at_least else '<'} {target.limit:g}"
        rows.append([target.says, f"{ratio:.2f}", wanted, "met" if target.met(ratio) else "NOT MET"])
    return table(rows)


def _yardstick(figures: Figures) -> str:
    return f"python -c 'import asyncio' takes {figures.median(YARDSTICKS, IMPORT):.0f} ms."


def _shell(figures: Figures) -> str:
    ours, bare = figures.median(YARDSTICKS, SHELL), figures.median(YARDSTICKS, BARE_SHELL)
    return f"Bash 'true' takes {ours:.2f} ms, a bare spawn of bash -c true {bare:.2f} ms: {ours / bare:.2f} ×."


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.1f}"


def table(rows: Sequence[Sequence[str]]) -> list[str]:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = []
    for row in rows:
        first, *rest = (cell.rjust(width) for cell, width in zip(row, widths, strict=True))
        lines.append("  ".join((row[0].ljust(len(first)), *rest)).rstrip())
    lines.insert(1, "-" * sum(widths, 2 * (len(widths) - 1)))
    return lines

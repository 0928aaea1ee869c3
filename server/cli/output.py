"""Print tables, times and counts."""

import time
from collections.abc import Iterable, Sequence


def print_table(rows: Sequence[Sequence[str]], widths: Iterable[int] = ()) -> None:
    """Print rows in columns, as wide as their cells unless `widths` is given."""
    widths = tuple(widths) or [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        print("  ".join(f"{cell:{width}}" for cell, width in zip(row, widths, strict=True)).rstrip())


def format_time(moment: float | None) -> str:
    """Return a date and a time of day, in UTC."""
    return "never" if moment is None else time.strftime("%Y-%m-%d %H:%M", time.gmtime(moment))


def format_count(number: int, thing: str) -> str:
    """Return "1 file", "2 files"."""
    return f"{number} {thing}{'' if number == 1 else 's'}"

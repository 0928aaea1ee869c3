"""Print tables, lines of JSON, times and counts."""

import json
import time
from collections.abc import Iterable, Sequence
from typing import Any


def print_table(rows: Sequence[Sequence[str]], widths: Iterable[int] = ()) -> None:
    """Print rows in columns, as wide as their cells unless `widths` is given."""
    widths = tuple(widths) or [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        print("  ".join(f"{cell:{width}}" for cell, width in zip(row, widths, strict=True)).rstrip())


def print_json_line(value: Any, *, flush: bool = False) -> None:
    """Print a value as one line of JSON, without a character that a terminal could treat as a command."""
    print(json.dumps(value).replace("\x7f", "\\u007f"), flush=flush)  # all else that is no ASCII is escaped


def format_time(moment: float | None) -> str:
    """Return a date and a time of day, in UTC."""
    return "never" if moment is None else time.strftime("%Y-%m-%d %H:%M", time.gmtime(moment))


def format_count(number: int, thing: str) -> str:
    """Return "1 file", "2 files"."""
    return f"{number} {thing}{'' if number == 1 else 's'}"

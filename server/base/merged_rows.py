"""Merge tables of which several parts of the program bring a row each."""

from collections.abc import Iterable
from itertools import chain
from typing import TypeVar

T = TypeVar("T")


def merge_rows(kind: str, *tables: Iterable[tuple[str, T]]) -> dict[str, T]:
    """Return all rows. Raises ValueError for two rows of one name: a later one would take the place of the first."""
    rows: dict[str, T] = {}
    for name, row in chain.from_iterable(tables):
        if name in rows:
            raise ValueError(f"there are two {kind} {name}")
        rows[name] = row
    return rows

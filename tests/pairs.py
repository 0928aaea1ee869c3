"""Take pairs of parameters in place of their full product: `make test` runs the pairs, `make soak` the rest.

Most faults come from one value, or from two that meet. So the tests with the mark `pairs` run often enough that each
two of a test, a value of one parameter and a value of another meet once: a test of two parameters runs each value of
either once, and the tests of a module begin at different places of the product.

Where the tests of a module share a parameter, such as the revision, the mark `rotated(n)` has each take the next n of
its values: all of them run, each with a part of the tests.
"""

from collections.abc import Iterable, Iterator, Sequence
from itertools import combinations, groupby

import pytest

Row = tuple[int, ...]  # the number of each parameter's value


def choose(rows: Sequence[Row], first: int = 0) -> set[int]:
    """Return the places of few rows that cover what all of them cover: always the row that covers most of the rest. Of
    several, it is the next one from `first` on."""
    strength = 2 if len(rows[0]) > 2 else 1
    covered_by = [{*combinations(enumerate(row), min(strength, len(row)))} for row in rows]
    rest = set().union(*covered_by)
    chosen = set[int]()
    while rest:
        best = max(range(len(rows)), key=lambda place: (len(covered_by[place] & rest), -((place - first) % len(rows))))
        chosen.add(best)
        rest -= covered_by[best]
    return chosen


def choose_next(count: int, number: int, turn: int) -> set[int]:
    """Return the places of `number` values of `count`: each turn has the next ones, and after the last the first."""
    return {place % count for place in range(turn * number, (turn + 1) * number)}


def leave_to_the_soak(items: Iterable[pytest.Item]) -> None:
    """Mark for the soak what tests with `pairs` or `rotated(n)` need not run."""
    quick = [
        item
        for item in items
        if isinstance(item, pytest.Function) and hasattr(item, "callspec") and not _is_marked(item, "soak")
    ]
    _pair([item for item in quick if _is_marked(item, "pairs")])
    _rotate([item for item in quick if _is_marked(item, "rotated") and not _is_marked(item, "pairs")])


def _pair(quick: Sequence[pytest.Function]) -> None:
    for turn, test in enumerate(_list_tests(quick)):
        rows = [*_rows(test)]
        chosen = choose(rows, turn) if rows else {*range(len(test))}
        for place, item in enumerate(test):
            if place not in chosen:
                item.add_marker(pytest.mark.soak)


def _rotate(quick: Sequence[pytest.Function]) -> None:
    for turn, test in enumerate(_list_tests(quick)):
        mark = test[0].get_closest_marker("rotated")
        assert mark is not None
        (number,) = mark.args
        chosen = choose_next(len(test), number, turn)
        for place, item in enumerate(test):
            if place not in chosen:
                item.add_marker(pytest.mark.soak)


def _list_tests(items: Iterable[pytest.Function]) -> Iterator[list[pytest.Function]]:
    """Yield the items of each test function."""
    for _, group in groupby(items, key=lambda item: item.nodeid.partition("[")[0]):
        yield [*group]


def _is_marked(item: pytest.Item, name: str) -> bool:
    return item.get_closest_marker(name) is not None


def _rows(items: Sequence[pytest.Function]) -> Iterator[Row]:
    """Yield the row of each item. Parameters that change together are one; a named tuple of words is several."""
    values = [[*_fields(item)] for item in items]
    columns = {_number(column) for column in zip(*values, strict=True)}
    return zip(*sorted(column for column in columns if len({*column}) > 1), strict=True)


def _fields(item: pytest.Function) -> Iterator[object]:
    for value in item.callspec.params.values():
        is_several = hasattr(value, "_fields") and all(isinstance(field, str) for field in value)
        yield from map(_key, value if is_several else [value])


def _key(value: object) -> object:
    """Return what equal values have in common; a product repeats its objects."""
    return (type(value), value) if isinstance(value, (str, bytes, int, float)) else id(value)


def _number(values: Sequence[object]) -> Row:
    """Return the values as numbers, in the order in which they come first."""
    numbers = {value: number for number, value in enumerate(dict.fromkeys(values))}
    return tuple(numbers[value] for value in values)

"""Describe a metric that is read at each scrape: its name, its help, and the values of its labels."""

from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple, TypeVar

Values = Iterable[tuple[tuple[str, ...], float]]
Key = TypeVar("Key", bound=str | int)


class MetricRow(NamedTuple):
    """`kind` is gauge or counter; `read` returns the value for each set of label values."""

    name: str
    kind: str
    help: str
    labels: tuple[str, ...]
    read: Callable[[], Values]


def read_field(measure: Callable[[], object], name: str) -> Callable[[], Values]:
    """Return what reads one field of a measurement."""
    return lambda: [((), getattr(measure(), name))]


def gauge(name: str, help: str, read: Callable[[], Values], *labels: str) -> MetricRow:
    """Return the row of a value that may fall."""
    return MetricRow(name, "gauge", help, labels, read)


def counter(name: str, help: str, read: Callable[[], Values], *labels: str) -> MetricRow:
    """Return the row of a number that only grows; its name gets `_total`."""
    return MetricRow(name, "counter", help, labels, read)


def by_key(counts: Mapping[Key, int]) -> Values:
    """Return each count with its key as the value of the one label."""
    return [((str(key),), count) for key, count in counts.items()]

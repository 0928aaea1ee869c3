"""Sample the resources of a server process, by /proc and its state folder, and find growth."""

import contextlib
import os
import sqlite3
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path

from tests.clients.raw_client import children

# Tables of what people and apps have made, up to limits that ten minutes don't reach: other tests reach them
KEPT = frozenset(("firing", "oauth_client", "step"))


@dataclass(frozen=True, slots=True)
class Sample:
    """One sample. Memory and `state` are in KiB; `state` excludes the audit log, which grows up to 160 MiB."""

    at: float  # seconds since the load began
    rss: int
    pss: int
    files: int  # descriptors
    threads: int
    children: int  # living descendants
    zombies: int
    temporary: int  # files and folders in the temporary folder, and temporary ones in the state
    state: int
    rows: int  # of all tables but those in KEPT


def sampled(pid: int, state: Path, temporary: Path, began: float) -> Sample:
    memory = _fields(Path(f"/proc/{pid}/smaps_rollup"))
    return Sample(
        round(time.monotonic() - began, 1),
        memory["Rss"],
        memory["Pss"],
        len(os.listdir(f"/proc/{pid}/fd")),
        _fields(Path(f"/proc/{pid}/status"))["Threads"],
        len(children(pid)),
        sum(1 for parent, condition in _processes() if parent == pid and condition == "Z"),
        sum(1 for _ in _files(temporary)) + sum(1 for _ in state.glob(".*")),
        sum(_size(path) for path in _files(state) if "audit" not in path.parts) // 1024,
        sum(count for name, count in rows(state).items() if name not in KEPT),
    )


def rows(state: Path) -> Mapping[str, int]:
    """Return the number of rows in each table."""
    if not (state / "state.db").exists():
        return {}
    place = f"{(state / 'state.db').as_uri()}?mode=ro"
    with contextlib.closing(sqlite3.connect(place, timeout=10, uri=True)) as connection:
        names = [name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
        return {name: connection.execute(f"SELECT count(*) FROM {name}").fetchone()[0] for name in names}


def table(samples: Sequence[Sample]) -> str:
    names = [field.name for field in fields(Sample)]
    lines = [names, *([str(getattr(sample, name)) for name in names] for sample in samples)]
    return "\n".join("".join(f"{cell:>10}" for cell in line) for line in lines)


def slope(samples: Sequence[Sample], name: str) -> float:
    """Return the growth per minute, by least squares."""
    times = [sample.at / 60 for sample in samples]
    values = [float(getattr(sample, name)) for sample in samples]
    middle, mean = sum(times) / len(times), sum(values) / len(values)
    spread = sum((at - middle) ** 2 for at in times)
    return sum((at - middle) * (value - mean) for at, value in zip(times, values, strict=True)) / spread


def _fields(path: Path) -> dict[str, int]:
    found: dict[str, int] = {}
    for line in path.read_text().splitlines():
        name, _, rest = line.partition(":")
        with contextlib.suppress(ValueError, IndexError):
            found[name] = int(rest.split()[0])
    return found


def _processes() -> Iterator[tuple[int, str]]:
    for path in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            condition, parent, *_ = (path / "stat").read_text().rpartition(")")[2].split()
            yield int(parent), condition


def _files(folder: Path) -> Iterator[Path]:
    """Yield the files below, even while they change."""
    for here, folders, names in os.walk(folder):
        yield from (Path(here, name) for name in (*folders, *names))


def _size(path: Path) -> int:
    with contextlib.suppress(OSError):
        return path.lstat().st_blocks * 512
    return 0

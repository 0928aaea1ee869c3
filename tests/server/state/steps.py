"""Count the instructions that SQLite carries out: they say how many rows an action visits, on any machine."""

from collections.abc import Generator
from contextlib import contextmanager
from typing import Any

from sqlalchemy import Engine, event


class StepCounter:
    """The instructions of the connections that were opened while it counts."""

    def __init__(self) -> None:
        self.count = 0

    def add(self) -> int:
        self.count += 1
        return 0  # anything else interrupts the statement

    def attach(self, raw: Any, _record: object) -> None:
        raw.set_progress_handler(self.add, 1)


@contextmanager
def counted_steps() -> Generator[StepCounter]:
    """Count the instructions of all databases that are opened in this context."""
    counter = StepCounter()
    event.listen(Engine, "connect", counter.attach)
    try:
        yield counter
    finally:
        event.remove(Engine, "connect", counter.attach)

"""Count the lines of Python that this thread executes: what work costs, on any machine."""

import gc
import sys
from collections.abc import Generator
from contextlib import contextmanager
from types import FrameType
from typing import Any


class LineCount:
    def __init__(self) -> None:
        self.lines = 0

    def trace(self, _frame: FrameType, event: str, _argument: Any) -> Any:
        self.lines += event == "line"
        return self.trace


@contextmanager
def counted_lines() -> Generator[LineCount]:
    """Count the lines of functions that begin within the block."""
    before = sys.gettrace()
    gc.disable()  # what it collects may have lines to run
    count = LineCount()
    sys.settrace(count.trace)
    try:
        yield count
    finally:
        sys.settrace(before)
        gc.enable()

"""Mark the slow steps of a call for a tracer."""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from contextvars import ContextVar

SpanFactory = Callable[[str], AbstractContextManager[object]]

SPAN_FACTORY: ContextVar[SpanFactory | None] = ContextVar("follow", default=None)  # set for each call's task


def span(name: str) -> AbstractContextManager[object]:
    """Return a context manager around a step. `name` is one of a short list, and never contains a caller's data."""
    follow = SPAN_FACTORY.get()
    return nullcontext() if follow is None else follow(name)

"""Mark the slow steps of a call, so that a tracer can time them."""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from contextvars import ContextVar

SpanFactory = Callable[[str], AbstractContextManager[object]]

SPAN_FACTORY: ContextVar[SpanFactory | None] = ContextVar("follow", default=None)  # of the task that works on the call


def span(name: str) -> AbstractContextManager[object]:
    """Around a step. `name` is one of a short list, with nothing in it that a caller said."""
    follow = SPAN_FACTORY.get()
    return nullcontext() if follow is None else follow(name)

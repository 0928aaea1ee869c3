"""Mark the slow steps of a call for a tracer."""

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from contextvars import ContextVar

Attributes = Mapping[str, str | int]
DescribeServer = Callable[[], Attributes]
SpanFactory = Callable[[str, DescribeServer | None], AbstractContextManager[object]]

SPAN_FACTORY: ContextVar[SpanFactory | None] = ContextVar("follow", default=None)  # set for each call's task


def span(name: str, server: DescribeServer | None = None) -> AbstractContextManager[object]:
    """Return a context manager around a step. `name` is one of a short list, and never contains a caller's data.

    `server` returns the attributes of another process that performs the step: then `name` is that of its method.
    """
    follow = SPAN_FACTORY.get()
    return nullcontext() if follow is None else follow(name, server)

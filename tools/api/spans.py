"""The steps of a call that may take a while, for whoever follows it. Knows neither the steps nor who follows."""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from contextvars import ContextVar

Follow = Callable[[str], AbstractContextManager[object]]

FOLLOW: ContextVar[Follow | None] = ContextVar("follow", default=None)  # of the task that works on the call


def step(name: str) -> AbstractContextManager[object]:
    """Around a step. `name` is one of a short list, with nothing in it that a caller said."""
    follow = FOLLOW.get()
    return nullcontext() if follow is None else follow(name)

"""Run blocking functions in daemon threads, a fixed number at once.

The event loop's executor has few threads: a handful of hanging calls would block all work and the loop's end.
"""

import asyncio
import contextlib
import contextvars
import threading
from collections.abc import Callable
from typing import Any, TypeVar

T = TypeVar("T")


class ThreadsBusyError(Exception):
    """All threads are taken, including those of abandoned calls that still run."""


class Threads:
    """At most `limit` threads at once."""

    def __init__(self, limit: int) -> None:
        self._free = threading.BoundedSemaphore(limit)

    async def run(self, function: Callable[[], T]) -> T:
        """Return or raise what `function()` does. Raises ThreadsBusyError. Cancelling stops only the waiting."""
        if not self._free.acquire(blocking=False):
            raise ThreadsBusyError
        answer: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        work = contextvars.copy_context().run
        threading.Thread(target=self._run, args=(lambda: work(function), answer), daemon=True).start()
        try:
            return await answer
        finally:
            del answer  # it holds the error, whose traceback holds this frame

    def _run(self, function: Callable[[], Any], answer: "asyncio.Future[Any]") -> None:
        result, failure = None, None
        try:
            result = function()
        except BaseException as error:  # noqa: BLE001  # every failure belongs to the waiting call
            failure = error
        finally:
            self._free.release()
        with contextlib.suppress(RuntimeError):  # the loop is closed, so no call waits
            answer.get_loop().call_soon_threadsafe(_settle, answer, result, failure)
        del answer, failure, function  # the error, whose traceback holds this frame


def _settle(answer: "asyncio.Future[Any]", result: Any, failure: BaseException | None) -> None:
    if answer.done():  # cancelled meanwhile
        return
    if failure is None:
        answer.set_result(result)
    elif isinstance(failure, (Exception, asyncio.CancelledError)) and not isinstance(failure, StopIteration):
        answer.set_exception(failure)
    else:  # a future can't carry it, or it would end the loop
        answer.set_exception(RuntimeError(f"{type(failure).__name__} out of a thread: {failure}"))

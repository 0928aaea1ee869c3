"""Run blocking functions in daemon threads, at most a fixed number at once.

Not the event loop's executor: its few threads are shared by all work, a handful of calls that hang would hold all of it
up, and the loop's end waits for them. These are daemon threads, and there is a limit to them.
"""

import asyncio
import contextlib
import contextvars
import threading
from collections.abc import Callable
from typing import Any, TypeVar

T = TypeVar("T")


class ThreadsBusyError(Exception):
    """All threads are taken, those of abandoned calls that still hang included."""


class Threads:
    """At most `limit` threads at once."""

    def __init__(self, limit: int) -> None:
        self._free = threading.BoundedSemaphore(limit)

    async def run(self, function: Callable[[], T]) -> T:
        """What `function()` gives or raises. Raises Busy. Cancelling stops the waiting, not the function."""
        if not self._free.acquire(blocking=False):
            raise ThreadsBusyError
        answer: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        work = contextvars.copy_context().run
        threading.Thread(target=self._run, args=(lambda: work(function), answer), daemon=True).start()
        return await answer

    def _run(self, function: Callable[[], Any], answer: "asyncio.Future[Any]") -> None:
        result, failure = None, None
        try:
            result = function()
        except BaseException as error:  # noqa: BLE001  # whatever it is, whoever waits is told
            failure = error
        finally:
            self._free.release()
        with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits any more
            answer.get_loop().call_soon_threadsafe(_settle, answer, result, failure)


def _settle(answer: "asyncio.Future[Any]", result: Any, failure: BaseException | None) -> None:
    if answer.done():  # cancelled meanwhile
        return
    if failure is None:
        answer.set_result(result)
    elif isinstance(failure, (Exception, asyncio.CancelledError)) and not isinstance(failure, StopIteration):
        answer.set_exception(failure)
    else:  # what a future can't carry, or what would end the loop
        answer.set_exception(RuntimeError(f"{type(failure).__name__} out of a thread: {failure}"))

"""Run functions one after another in a thread, for an event loop.

Unlike an executor's, the thread is a daemon: a hanging function does not keep the process from ending.
"""

import asyncio
import threading
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any, TypeVar

T = TypeVar("T")


class DatabaseThread:
    """A thread that starts at once."""

    def __init__(self, name: str) -> None:
        from queue import SimpleQueue  # start-up

        self._jobs: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._waiting: set[asyncio.Future[Any]] = set()
        self._thread = threading.Thread(target=self._work, name=name, daemon=True)
        self._thread.start()

    def run(self, function: Callable[[], T]) -> "asyncio.Future[T]":
        """Return a future with what `function` returns or raises. If that is done before its turn, it is not called."""
        loop = asyncio.get_running_loop()
        done: asyncio.Future[T] = loop.create_future()
        self._waiting.add(done)
        done.add_done_callback(self._waiting.discard)
        self._jobs.put(partial(_do, loop, done, function))
        return done

    def close(self, last: Callable[[], None], within: float, late: Exception) -> None:
        """Run what waits, then `last`. Blocks for at most `within` seconds; what is not done then fails with `late`."""
        self._jobs.put(last)
        self._jobs.put(None)
        self._thread.join(within)
        if self._thread.is_alive():
            for done in list(self._waiting):
                with suppress(RuntimeError):  # its loop is closed
                    _settle(done, None, late)

    def _work(self) -> None:
        while (job := self._jobs.get()) is not None:
            job()


def _do(loop: asyncio.AbstractEventLoop, done: "asyncio.Future[T]", function: Callable[[], T]) -> None:
    if done.done():  # its caller has gone
        return
    result, failure = None, None
    try:
        result = function()
    except BaseException as error:  # noqa: BLE001 # the caller gets it
        failure = error
    with suppress(RuntimeError):  # the loop is closed
        loop.call_soon_threadsafe(_settle, done, result, failure)
    del done, failure, function  # the error, whose traceback holds this frame


def _settle(done: "asyncio.Future[Any]", result: object, failure: BaseException | None) -> None:
    if done.done():
        return
    if failure is None:
        done.set_result(result)
    else:
        done.set_exception(failure)

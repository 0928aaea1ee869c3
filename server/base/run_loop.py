"""Set a process up for serving, and run its main coroutine, so that it ends only when that returns."""

import asyncio
import contextlib
import gc
import logging
import os
import signal
import sys
import threading
from collections.abc import Callable, Coroutine, Generator
from typing import Any, TypeVar

T = TypeVar("T")

SIGNALS = (signal.SIGTERM, signal.SIGINT)
ENDED = "ended before it served"
REUSED = 4 * 2**20  # bytes: twice as many freed ones are kept for what comes

log = logging.getLogger("toolgate")


class SignalExit(SystemExit):
    """SIGTERM or SIGINT came before the loop listens for them."""


def exit_on_signal() -> None:
    """Have SIGTERM and SIGINT raise SignalExit, also out of what blocks. `run_server` ends its main coroutine then."""
    for number in SIGNALS:
        signal.signal(number, _exit)


def _exit(_number: int, _frame: object) -> None:
    raise SignalExit(0)


def take_descriptors() -> tuple[int, int]:
    """Return the protocol's descriptors (input, output), moved away from 0 and 1. Descriptor 0 is then empty and
    descriptor 1 is standard error, for the server, plugins and children."""
    taken = os.dup(0), os.dup(1)  # not inheritable
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    os.dup2(2, 1)
    sys.stdout = sys.stderr
    return taken


def settle_memory() -> None:
    """Set up memory for serving, after the imports. What is loaded is never collected: a call leaves little garbage,
    and pauses cost latency.

    glibc would give up the pages of a large text after each call and fault them in at the next, up to half of a call
    with 1 MiB. It keeps twice the size of the largest mapping that was ever freed (mallopt(3), M_MMAP_THRESHOLD). The
    pages of this one are never touched.
    """
    gc.freeze()
    gc.set_threshold(50_000, 50, 100)
    _ = bytes(REUSED)


def run_server(main: Callable[[], Coroutine[Any, Any, None]], factory: Callable[[], asyncio.AbstractEventLoop]) -> None:
    """Run `main()` in a new loop. Unlike `asyncio.run` it does not wait for hung threads. A SystemExit or
    KeyboardInterrupt from another task (a plugin's `sys.exit()`) is logged, and the loop goes on. After a SignalExit
    `main` ends what it has begun."""
    loop = factory()
    asyncio.set_event_loop(loop)
    work = loop.create_task(main())
    is_ended = False  # by a signal
    try:
        while not work.done():
            try:
                loop.run_until_complete(work)
            except SignalExit:
                log.info(ENDED)
                is_ended = True
                work.cancel()
            except asyncio.CancelledError:
                continue  # it is the result
            except (SystemExit, KeyboardInterrupt):
                if work.done():
                    raise
                log.exception("a task tried to end the server")
        with contextlib.suppress(*((asyncio.CancelledError, SignalExit) if is_ended else ())):
            work.result()
    finally:
        left = asyncio.all_tasks(loop)
        for task in left:
            task.cancel()
        if left:
            with contextlib.suppress(SystemExit, KeyboardInterrupt):
                loop.run_until_complete(asyncio.wait(left, timeout=0.5))
        loop.run_until_complete(loop.shutdown_asyncgens())
        asyncio.set_event_loop(None)
        _exit_on_further_signal(loop)
        if not any(task for task in left if not task.done()):
            loop.close()


def _exit_on_further_signal(loop: asyncio.AbstractEventLoop) -> None:
    """Have a signal end the process at once, as one that is done: all that was begun has been left."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
    for number in SIGNALS:
        loop.remove_signal_handler(number)
        signal.signal(number, lambda _number, _frame: exit_now(0))
    signal.pthread_sigmask(signal.SIG_SETMASK, before)


def run_interruptible(work: Coroutine[Any, Any, T]) -> T:
    """Run like `asyncio.run`, but notice Ctrl-C even as the loop falls asleep. Raises KeyboardInterrupt when the work
    has been cancelled, or at once on a second Ctrl-C."""
    pressed = False

    async def listening() -> T:
        loop, task = asyncio.get_running_loop(), asyncio.current_task()
        assert task is not None

        def press() -> None:
            nonlocal pressed
            pressed = True
            signal.signal(signal.SIGINT, signal.default_int_handler)  # still wakes the loop
            task.cancel()

        loop.add_signal_handler(signal.SIGINT, press)
        return await work

    try:
        return asyncio.run(listening())
    except asyncio.CancelledError:
        if pressed:
            raise KeyboardInterrupt from None
        raise


def cancel_on_signal() -> tuple[asyncio.Event, asyncio.Event]:
    """Have SIGTERM and SIGINT cancel the current task, once. Return what the first sets, and what a second one sets."""
    loop, task = asyncio.get_running_loop(), asyncio.current_task()
    first, second = asyncio.Event(), asyncio.Event()
    assert task is not None

    def cancel() -> None:
        if first.is_set():
            second.set()
        else:
            first.set()
            task.cancel()

    for number in SIGNALS:
        loop.add_signal_handler(number, cancel)
    return first, second


@contextlib.contextmanager
def ending_on_signal() -> Generator[None]:
    """Have SIGTERM or SIGINT end this block, by a cancellation, unless what it runs listens for them itself."""
    interrupted, _ = cancel_on_signal()
    try:
        yield
    except asyncio.CancelledError:
        if not interrupted.is_set():
            raise
        log.info(ENDED)


@contextlib.contextmanager
def hurrying_on_signal(seconds: float) -> Generator[None]:
    """Have SIGTERM or SIGINT cancel what this block waits for so many seconds later, and again as often as it waits for
    something else as long: each end that hangs gets the time once."""
    loop, task = asyncio.get_running_loop(), asyncio.current_task()
    assert task is not None
    timers: list[asyncio.TimerHandle] = []

    def cancel() -> None:
        log.warning("an end takes more than %g s after the signal: the server goes on to the next one", seconds)
        task.cancel()
        timers.append(loop.call_later(seconds, cancel))

    def hear() -> None:
        if not timers:
            timers.append(loop.call_later(seconds, cancel))

    for number in SIGNALS:
        loop.add_signal_handler(number, hear)
    try:
        yield
    except asyncio.CancelledError:
        if len(timers) < 2:
            raise
    finally:
        for timer in timers:
            timer.cancel()


def exit_if_hung(code: int) -> None:
    """End the process at once if a hung thread would keep the interpreter from exiting."""
    if any(not thread.daemon for thread in threading.enumerate() if thread is not threading.main_thread()):
        os._exit(code)


def exit_now(code: int) -> None:
    """End the process without running any more of its code."""
    os._exit(code)

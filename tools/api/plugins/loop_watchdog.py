"""Detect that a plugin blocks the event loop, and name it in the log.

While calls run that could block, a thread asks the loop for a sign of life; otherwise the thread sleeps.
"""

import asyncio
import logging
import sys
import threading
import time
from types import FrameType

log = logging.getLogger("toolgate.plugins")

PATIENCE = 1.0  # seconds for the loop to answer: people notice longer pauses
PAUSE = 1.0  # seconds between two questions, so that short calls cost at most one wake-up a second


class LoopWatchdog:
    """Watch the loop while calls run: they begin and end in its thread. `prefix` begins plugins' module names."""

    def __init__(self, prefix: str) -> None:
        self._prefix = prefix
        self._running: list[None] = []  # an item a call: append and pop need no lock, so a finalizer may end one
        self._has_calls = threading.Event()
        self._is_awake = False  # it was set: the methods of an Event are slow beside a small call
        self._closed = threading.Event()
        self._thread: threading.Thread | None = None

    def begin_call(self) -> None:
        self._running.append(None)
        if not self._is_awake:
            if self._thread is None:
                self._start()
            self._has_calls.set()
            self._is_awake = True

    def end_call(self) -> None:
        self._running.pop()  # the thread clears the Event later

    def close(self) -> None:
        self._closed.set()
        self._has_calls.set()

    def _start(self) -> None:
        asked = (asyncio.get_running_loop(), threading.get_ident())
        self._thread = threading.Thread(target=self._run, args=asked, name="blocking", daemon=True)
        self._thread.start()

    def _run(self, loop: asyncio.AbstractEventLoop, thread: int) -> None:
        while not self._closed.is_set():
            self._has_calls.wait()
            try:
                self._probe(loop, thread)
            except RuntimeError:  # the loop is closed
                return
            self._closed.wait(PAUSE)
            self._has_calls.clear()
            self._is_awake = False
            if self._running or self._closed.is_set():  # a call that begins after this sets it
                self._has_calls.set()
                self._is_awake = True

    def _probe(self, loop: asyncio.AbstractEventLoop, thread: int) -> None:
        asked = time.monotonic()
        answered = threading.Event()
        loop.call_soon_threadsafe(answered.set)
        named = None
        while not answered.wait(PATIENCE) and not self._closed.is_set():
            if named is None:
                named = self._find_plugin_frame(thread)
                if named is not None:
                    told = (*named, time.monotonic() - asked)
                    log.warning("plugin %s, line %d, blocks the server: nothing else was served for %.1f s", *told)
        if named is not None:
            log.info("plugin %s blocked the server for %.1f s", named[0], time.monotonic() - asked)

    def _find_plugin_frame(self, thread: int) -> tuple[str, int] | None:
        """Return file and line of the innermost plugin frame in the loop's thread."""
        frame: FrameType | None = sys._current_frames().get(thread)  # pyright: ignore[reportPrivateUsage]  # the documented one
        while frame is not None:
            if str(frame.f_globals.get("__name__", "")).startswith(self._prefix):
                return frame.f_code.co_filename, frame.f_lineno
            frame = frame.f_back
        return None

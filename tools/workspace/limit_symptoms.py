"""Guess from the output of a command which limit it reached: of most the kernel tells only the process."""

import os
import signal
from collections.abc import Callable, Sequence
from dataclasses import fields
from pathlib import Path

from toolgate.tools.workspace.limits import Limits
from toolgate.tools.workspace.spool import Run

SYMPTOMS = {  # limit → what programs say at it, and what it is of
    "files": (("Too many open files",), "open files of a process"),
    "processes": (
        ("fork: Resource temporarily unavailable", "fork: retry", "can't start new thread", "BlockingIOError"),
        "processes and threads",
    ),
    "memory": (("MemoryError", "annot allocate memory", "bad_alloc", "ut of memory"), "bytes of memory of a process"),
    "tmp": (("No space left on device", "Disk quota exceeded"), "bytes of /tmp"),
}


KILLED = 128 + signal.SIGKILL  # what a process comes to that ignores the signal of its CPU time


def guess_limits(run: Run, text: str, limits: Limits, level: str, disk: Callable[[], str]) -> Sequence[str]:
    """The limits, in words, that a command which failed and said `text` may have reached. `disk` says what
    the workspace's has no room for."""
    if run.exit_code == KILLED and 0 < limits.cpu <= run.runtime_ms / 1000 * (os.cpu_count() or 1):
        return [f"it was killed, perhaps at the limit of {limits.cpu:,} s of CPU time of a process (--limit cpu)"]
    if any(words in text for words in SYMPTOMS["tmp"][0]) and (full := disk()):
        return [full]
    values = {each.name: getattr(limits, each.name) for each in fields(limits)}
    if level != "bwrap":
        values["tmp"] = 0  # there /tmp is the machine's
    return [
        f"the limit of {values[name]:,} {what} may have been reached (--limit {name})"
        for name, (signs, what) in SYMPTOMS.items()
        if values[name] and any(words in text for words in signs)
    ]


def full_disk(folder: Path) -> str:
    """Return what the disk of `folder` has no room for, in words; "" where it has room."""
    try:
        found = os.statvfs(folder)
    except OSError:
        return ""
    if found.f_bavail == 0:
        return "the disk is full"
    return "the disk has no room for more files" if found.f_files and found.f_favail == 0 else ""

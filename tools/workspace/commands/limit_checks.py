"""Enforce a workspace's limits on its commands, and name the limits they reached.

This runs where the command runs, maybe at a node: others read what was reached in `Run.hits`.
"""

import os
import resource
import signal
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec.structs import asdict

from toolgate.tools.api.errors import ToolError
from toolgate.tools.workspace.commands.disk_usage import DiskUsageWatcher
from toolgate.tools.workspace.commands.environment import CommandEnvironment
from toolgate.tools.workspace.commands.run import RunningCommand
from toolgate.tools.workspace.limits import Limits
from toolgate.tools.workspace.output.run_record import Run

if TYPE_CHECKING:
    from toolgate.tools.workspace.commands.local_program import LocalProgram

MAX_RUNNING = 64  # commands of one principal at once, with background ones: each costs a few processes
CPU_REACHED = "the limit of {0.cpu:,} s of CPU time of a process was reached (--limit cpu)"
FILE_REACHED = "the limit of {0.file_size:,} bytes of a file was reached (--limit file-size)"
TEMPORARY_REACHED = "the limit of a temporary file while a plan is active was reached (--limit tmp)"
ENDED_BY = {  # exit code of a process that reached a limit (signal(7)) → the limit
    128 + signal.SIGXCPU: (resource.RLIMIT_CPU, CPU_REACHED),
    128 + signal.SIGXFSZ: (resource.RLIMIT_FSIZE, FILE_REACHED),
}
SYMPTOMS = {  # limit → what programs print at it, and its unit
    "files": (("Too many open files",), "open files of a process"),
    "processes": (
        ("fork: Resource temporarily unavailable", "fork: retry", "can't start new thread", "BlockingIOError"),
        "processes and threads",
    ),
    "memory": (("MemoryError", "annot allocate memory", "bad_alloc", "ut of memory"), "bytes of memory of a process"),
    "tmp": (("No space left on device", "Disk quota exceeded"), "bytes of /tmp"),
}
KILLED = 128 + signal.SIGKILL  # the exit code of a process that ignores the signal of its CPU limit
WRITE_REFUSED = ("Permission denied", "File too large")  # what programs print in a workspace that is write-protected


class LimitChecks:
    """The limits of `environment`, for the `running` commands, by id, in the workspace `root`. They may also write to
    `cwd_folder`."""

    def __init__(
        self, environment: CommandEnvironment, root: Path, cwd_folder: Path, running: Mapping[int, RunningCommand]
    ) -> None:
        self._environment = environment
        self._root = root
        self._limits = environment.limits
        self._most_tasks = self._limits.background or MAX_RUNNING
        self._running = running
        self.programs: set[LocalProgram] = set()  # that run or start, whose streams a caller holds
        shared = self._limits.memory if resource.RLIMIT_DATA in environment.resources else 0  # else a group counts that
        self._usage = DiskUsageWatcher(environment, [root, cwd_folder], shared, self._end_all)
        self.remeasure = self._usage.remeasure
        self.command_started = self._usage.command_started
        self.command_ended = self._usage.command_ended
        self.program_started = self._usage.program_started
        self.program_ended = self._usage.program_ended
        self.note_input = self._usage.note_input
        self.close = self._usage.close

    def check_start(self, *, background: bool) -> None:
        """Raise ToolError if no further command may start."""
        most = min(self._limits.commands or MAX_RUNNING, MAX_RUNNING)
        if len(self._running) + len(self.programs) >= most:
            option = " (--limit commands)" if most < MAX_RUNNING else ""
            what = "commands and programs" if self.programs else "commands"
            raise ToolError(
                f"{most} {what} are running, the most at once{option}: wait for one, or end one with KillBgTask"
            )
        if background and not self.has_room:
            raise ToolError(f"{self.too_many_tasks}: end one with KillBgTask")

    @property
    def has_room(self) -> bool:
        """Return whether another background task may start."""
        return sum(running.run.background for running in self._running.values()) < self._most_tasks

    @property
    def too_many_tasks(self) -> str:
        return f"{self._most_tasks} background tasks are running, the most at once (--limit background)"

    def limit_age(self, run_id: int) -> None:
        """End a background task at its maximum age."""
        running, age = self._running.get(run_id), self._limits.age
        if running is not None and age:
            running.end_at(running.run.started + age, f"it was older than {age:,} s, the most for a background task")

    @property
    def is_measuring(self) -> bool:
        return self._usage.is_measuring

    @property
    def is_full(self) -> bool:
        """Whether the workspace is over its limit: commands may remove files there, not write them."""
        return self._usage.usage.is_full

    @property
    def excess(self) -> str:
        """By how much the workspace is over its limit, in words, or ""."""
        return self._usage.usage.excess

    @property
    def resources(self) -> Mapping[int, int]:
        """The limits of each process."""
        wanted = self._environment.resources
        return {**wanted, resource.RLIMIT_FSIZE: 0} if self.is_full else wanted

    def find_reached(self, run: Run, output: str = "") -> Sequence[str]:
        """Return the limits that were reached, in words; if none is known, those that `output` suggests."""
        for why in self._environment.reached_limits():
            for each in (run, *(running.run for running in self._list_running() if running.run is not run)):
                each.hits.append(why)
        ended_by = ENDED_BY.get(run.exit_code or 0)
        if ended_by is not None and (ended_by[0] in self.resources or run.read_only):
            is_write = ended_by[0] == resource.RLIMIT_FSIZE
            text = TEMPORARY_REACHED if is_write and run.read_only else ended_by[1].format(self._limits)
            run.hits.append((is_write and not run.read_only and self._usage.usage.excess) or text)
        if run.exit_code and self.is_full and any(words in output for words in WRITE_REFUSED):
            run.hits.append(self._usage.usage.excess)
        if not run.hits and run.exit_code != 0:
            disk = partial(full_disk, self._root)
            run.hits.extend(guess_limits(run, output, self._limits, self._environment.level, disk))
        run.hits = list(dict.fromkeys(run.hits))
        return run.hits

    def _end_all(self, why: str) -> None:
        """End all commands and programs: it is unknown which of them writes too much."""
        for running in self._list_running():
            running.run.hits.append(why)
            running.terminate(why)

    def _list_running(self) -> "Sequence[RunningCommand | LocalProgram]":
        return [*self._running.values(), *self.programs]


def guess_limits(run: Run, text: str, limits: Limits, level: str, disk: Callable[[], str]) -> Sequence[str]:
    """Guess from `text`, the output of a failed command, the limits it reached: the kernel reports most only to the
    process. `disk` returns what the workspace's disk has no room for."""
    if run.exit_code == KILLED and 0 < limits.cpu <= run.runtime_ms / 1000 * (os.cpu_count() or 1):
        return [f"it was killed, perhaps at the limit of {limits.cpu:,} s of CPU time of a process (--limit cpu)"]
    if any(words in text for words in SYMPTOMS["tmp"][0]) and (full := disk()):
        return [full]
    values = asdict(limits)
    if level != "bwrap":
        values["tmp"] = 0  # there /tmp is the machine's
    return [
        f"the limit of {values[name]:,} {what} may have been reached (--limit {name})"
        for name, (signs, what) in SYMPTOMS.items()
        if values[name] and any(words in text for words in signs)
    ]


def full_disk(folder: Path) -> str:
    """Return what the disk of `folder` has no room for, in words, or ""."""
    try:
        found = os.statvfs(folder)
    except OSError:
        return ""
    if found.f_bavail == 0:
        return "the disk is full"
    return "the disk has no room for more files" if found.f_files and found.f_favail == 0 else ""

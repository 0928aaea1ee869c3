"""Define the record of one run of a command, as the spool stores it."""

import time
from collections.abc import Callable
from typing import Literal

import msgspec

Status = Literal["running", "exited", "killed", "lost"]


class Run(msgspec.Struct):
    """One run of a command, as `task.json` stores it. Times are in seconds since the epoch."""

    id: int
    command: str
    server: str  # whose lock shows whether the run can still be reached
    started: float
    background: bool = False
    status: Status = "running"
    exit_code: int | None = None
    ended: float | None = None
    timed_out: bool = False
    reason: str | None = None  # why it was killed, for the model
    size: int = 0  # bytes of output, once ended
    read: int = 0  # bytes of output returned to the model
    read_from: int = 0  # where the last answer with output began
    reader: str = ""  # the server or gateway that gave it, unless it has surely sent it
    kept: int | None = None  # bytes of output kept, if not all
    left: int = 0  # processes that the command left running
    moved: bool = False  # its directory was gone: it ran in the workspace's root
    read_only: bool = False  # it could change nothing
    in_memory: bool = False  # its output is in no file: the disk was full
    key: str | None = None
    hits: list[str] = msgspec.field(default_factory=list)  # limits reached, in words
    is_report_due: bool = False  # it is a background task whose end is not reported; never of a release without reports
    misses_ends: bool = False  # others before it were forgotten before their end was reported

    @property
    def runtime_ms(self) -> int:
        return max(0, round(((self.ended or time.time()) - self.started) * 1000))

    def copy(self) -> "Run":
        """Return the run as it is now."""
        return msgspec.structs.replace(self, hits=[*self.hits])


class OutputReader(msgspec.Struct, frozen=True):
    """The server or gateway that answers a read of output. `is_gone(name)`: another one has ended, perhaps before it
    sent its answer."""

    name: str
    is_gone: Callable[[str], bool]


class TaskEnd(msgspec.Struct, frozen=True, eq=False):
    """A background task that has ended or, if it still runs, has lost the call that started it.

    `confirm` is called when its end is stored elsewhere: until then each later server reports it again. `is_earlier`:
    it ended with an earlier server.
    """

    run: Run
    confirm: Callable[[], None]
    is_earlier: bool = False

"""Define the services that the server gives a tool for one call, bound to its principal and session.

Plugins may use the Protocols here (docs/plugins.md); the server and other rooms of tools implement them.
"""

import os
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from datetime import datetime  # read at run time (server/features/mounts/plugins/api.py); msgspec has it loaded
from pathlib import Path
from typing import Any, Protocol

import msgspec

PYTHON = os.path.realpath(getattr(sys, "_base_executable", sys.executable))  # sandboxes show it; of a venv, its base
SAVE_PAUSE = 10.0  # seconds between two attempts to store a cwd: each may wait for seconds


class TodoStep(msgspec.Struct, frozen=True):
    number: int  # counts from 1 within its task
    text: str
    completed: bool


class Todo(msgspec.Struct, frozen=True):
    id: int
    name: str
    current: bool
    completed: bool
    steps: Sequence[TodoStep]


class Todos(Protocol):
    """The caller's to-do tasks (TaskManager). Ids are never reused. Every method is one transaction. An id of another
    caller raises KeyError."""

    async def create(self, name: str) -> Todo: ...  # and makes it current
    async def add(self, task_id: int, text: str) -> Todo: ...
    async def complete(self, task_id: int, step: int | None = None) -> Todo: ...  # unknown step: LookupError
    async def switch(self, task_id: int) -> Todo: ...
    async def may_exist(self) -> bool: ...  # cheap, for lists of resources
    async def all(self) -> Sequence[Todo]: ...  # by id
    async def list_open(self) -> Sequence[Todo]: ...  # those that are not completed, by id
    async def list_newest(self, most: int) -> tuple[Sequence[Todo], int]: ...  # by id, with the number of all
    async def list_ids(self) -> Sequence[int]: ...  # the newest first
    async def find(self, task_id: int) -> Todo: ...
    async def current(self) -> int | None: ...


class PlanState(msgspec.Struct, frozen=True):
    active: bool
    goal: str
    plan_file: str | None
    started_at: datetime | None  # UTC


class Plan(Protocol):
    """The caller's plan: the session's, or the principal's without a session."""

    async def active(self) -> bool: ...  # cheap: asked by each call that changes things
    async def state(self) -> PlanState: ...
    async def enter(self, goal: str, plan_file: str | None) -> PlanState: ...
    async def exit(self, plan_file: str | None = None) -> PlanState: ...  # inactive, goal and file kept
    async def reset(self) -> PlanState: ...  # the first plan's earlier state again


class Callback(msgspec.Struct, frozen=True):
    id: int  # the slot, 0 to 7
    message: str
    delay: int  # seconds between firings
    fires_in_ms: int
    repeats_left: int  # -1: no end


class FiredCallback(msgspec.Struct, frozen=True):
    id: int  # the slot it had
    message: str
    at: datetime  # UTC


class Callbacks(Protocol):
    """The caller's callbacks: eight slots per principal."""

    async def set(self, message: str, delay: int, repeats: int) -> Callback: ...  # all taken: OverflowError
    async def list(self) -> Sequence[Callback]: ...
    async def cancel(self, slot: int | None) -> Sequence[Callback]: ...  # the cancelled ones; unknown slot: KeyError
    async def list_fired(self) -> Sequence[FiredCallback]: ...  # the latest, newest first


class CallerState(msgspec.Struct):
    """The working directory and plan of a session, or of the principal in the stateless era.

    `key` is the digest of a session's id, or "" for the principal's. `cwd` is None until a command changes it, and so
    is `previous`, the directory before, to which `cd -` returns. `plan` is a session's own; a principal's is in the
    state. `save` stores these if they outlive the process; `saved_cwd` and `saved_previous` are what it stored last.
    `load` reads them again where other servers store them, too.
    """

    key: str = ""
    cwd: Path | None = None
    plan: PlanState | None = None
    save: Callable[[], Awaitable[None]] | None = None
    saved_cwd: Path | None = None
    load: Callable[[], Awaitable[None]] | None = None
    retry_save_at: float = 0.0  # of the monotonic clock
    previous: Path | None = None
    saved_previous: Path | None = None

    @property
    def is_saved(self) -> bool:
        """Whether the directories are as they were stored."""
        return (self.cwd, self.previous) == (self.saved_cwd, self.saved_previous)

    def note_saved(self, cwd: Path | None, previous: Path | None) -> None:
        """Note that these directories are stored."""
        self.saved_cwd, self.saved_previous = cwd, previous

    async def save_cwd(self) -> None:
        """Store changed directories that can outlive the process. After a failure, skip it for SAVE_PAUSE seconds."""
        if self.save is None or self.is_saved or time.monotonic() < self.retry_save_at:
            return
        before = self.cwd, self.previous
        await self.save()
        if (self.saved_cwd, self.saved_previous) != before:
            self.retry_save_at = time.monotonic() + SAVE_PAUSE


class Settings(msgspec.Struct, frozen=True):
    """The options that tools read. Sizes in bytes or pixels, times in seconds."""

    hold: float = 45.0  # longest a call is held; clients kill calls at about 60
    image_bytes: int = 1_000_000  # of base64: desktop clients refuse more
    image_pixels: int = 2_000  # long edge
    any_file: bool = True  # whether ReadImage may leave the workspace: true for the local user, false over HTTP


class ProgramResult(msgspec.Struct, frozen=True):
    """The end of a program: its exit code (128 + N for signal N; None if unknown), standard output and standard error
    together. `truncated`: there was more output than the limit."""

    exit_code: int | None
    output: bytes
    truncated: bool


class CallerWorkspace(Protocol):
    """The caller's folder. Built-in tools take the whole Workspace from `Context.service`."""

    @property
    def root(self) -> Path: ...

    @property
    def sandbox(self) -> str: ...  # the sandbox level of its commands

    @property
    def output_folder(self) -> Path: ...  # of the files with the output of its commands

    @property
    def private_folder(self) -> Path | None: ...  # the server's own, if it may be inside `root`

    def check_file(self, path: str, *, suffix: str) -> None: ...  # ToolError if write_file would refuse the path
    async def read_file(self, path: str, limit: int, *, anywhere: bool) -> bytes: ...
    async def write_file(self, path: str, data: bytes, *, suffix: str) -> Path: ...

    async def run_program(
        self,
        argv: Sequence[str],
        *,
        given: bytes = b"",
        limit: int = ...,
        timeout: float = ...,
        changes_files: bool = False,
    ) -> ProgramResult: ...


class Page(msgspec.Struct, frozen=True):
    """A fetched page, at the end of its redirects.

    `url` is the final one. Header names are lower case; repeated headers are joined by ", ". `body` is decoded from its
    content-encoding. `truncated` says that the page was longer than the limit, `is_incomplete` that it broke off.
    """

    url: str
    status: int
    headers: Mapping[str, str]
    body: bytes
    truncated: bool
    is_incomplete: bool = False

    @property
    def content_type(self) -> str:
        """The bare media type in lower case, or "" if the header was missing."""
        return self.headers.get("content-type", "").partition(";")[0].strip().lower()


class PageFetcher(Protocol):
    """Fetch web pages from public addresses only, checked at each redirect."""

    async def fetch(
        self,
        url: str,
        *,
        method: str = "GET",
        headers: Mapping[str, str] | None = None,
        body: bytes = b"",
        limit: int = ...,
        timeout: float = ...,
        redirects: int = ...,
        lane: str = "",
    ) -> Page: ...


def _ignore(*_: object) -> None:
    """Notify no client."""


async def _watch_nothing(path: Path, since: float | None) -> AsyncIterator[None]:
    """Yield nothing: changes are not watched."""
    return
    yield


class Services(msgspec.Struct, frozen=True, weakref=True):
    """The services of one call. `built_in` holds by type those for built-in tools only (`Context.service`)."""

    principal: str  # opaque and stable
    caller_state: CallerState
    workspace: CallerWorkspace
    todos: Todos
    plan: Plan
    callbacks: Callbacks
    web: PageFetcher
    settings: Settings
    is_read_only: bool = False  # a plan is active, and the tool may change nothing
    notify_updated: Callable[[str], None] = _ignore  # tell the principal's subscribers that this URI changed
    notify_list_changed: Callable[[], None] = _ignore  # tell the principal's clients that the resource list changed
    # yields at each change of the file or folder from a time on, in seconds since 1970, or from now on
    watch_path: Callable[[Path, float | None], AsyncIterator[object]] = _watch_nothing
    built_in: Mapping[type, Any] = msgspec.field(default_factory=dict[type, Any])

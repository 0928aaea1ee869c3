"""Declare the types of events that come with the server; the other files of this room tell when they happen.

A payload holds no more than the tool it tells about would answer.
"""

from typing import Annotated, Literal

import msgspec

from toolgate.tools.api.event import EventType, event
from toolgate.tools.api.scopes import READ, WORKFLOW

MAX_PATTERN = 256  # characters
MAX_PATH = 4_096  # characters, as in Linux

Pattern = Annotated[
    str,
    msgspec.Meta(min_length=1, max_length=MAX_PATTERN),
    "text that a line holds; * stands for any characters, ? for one",
]
WatchedFile = Annotated[str, msgspec.Meta(min_length=1, max_length=MAX_PATH), "file or folder in the workspace"]


class CommandEndPayload(msgspec.Struct, frozen=True):
    """`id` is that of ListBgTasks; `last_lines` are the end of the output."""

    id: int
    command: str
    status: str
    exit_code: int | None
    runtime_ms: int
    last_lines: str


class OutputMatchPayload(msgspec.Struct, frozen=True):
    id: int
    command: str
    pattern: str
    line: str


class FiringPayload(msgspec.Struct, frozen=True):
    callback_id: int
    message: str
    left: int


class AnswerPayload(msgspec.Struct, frozen=True):
    id: str
    tool: str
    action: str
    is_approval: bool


class TaskEndPayload(msgspec.Struct, frozen=True):
    task_id: str
    tool: str
    status: str


class TodoChangePayload(msgspec.Struct, frozen=True):
    task_id: int
    name: str
    change: str
    step_id: int | None
    completed: bool
    open_steps: int


class FileChangePayload(msgspec.Struct, frozen=True):
    """`changed` and `removed` are names in the folder, or the path itself for a file."""

    path: str
    changed: list[str]
    removed: list[str]
    is_cut: bool


class RefusalPayload(msgspec.Struct, frozen=True):
    tool: str
    rule: str


@event(name="command.ended", payload=CommandEndPayload, scope=READ, tool="BackgroundBash")
def command_ended(id: Annotated[int | None, "the background task"] = None) -> None:
    """A background task of BackgroundBash or Bash has ended. ReadBgOutput reads all of its output."""


@event(name="command.output", payload=OutputMatchPayload, scope=READ, tool="BackgroundBash")
def output_matched(pattern: Pattern, id: Annotated[int | None, "the background task"] = None) -> None:
    """A background task has written a line that matches a pattern, after the subscription began."""


@event(name="callback.fired", payload=FiringPayload, scope=WORKFLOW, tool="SetCallback")
def callback_fired(callback_id: Annotated[int | None, "the callback"] = None) -> None:
    """A callback of SetCallback has fired."""


@event(name="question.answered", payload=AnswerPayload, scope=WORKFLOW, tool="AskUserQuestion")
def question_answered(
    tool: Annotated[str | None, "the tool whose call asked"] = None,
    is_approval: Annotated[bool | None, "whether it was asked if the call may run"] = None,
) -> None:
    """The person has answered a question on the server's page. Repeat the call that asked: it gets the answer."""


@event(name="task.ended", payload=TaskEndPayload, scope=READ)
def task_ended(
    task_id: Annotated[str | None, "the task, of the extension io.modelcontextprotocol/tasks"] = None,
    status: Literal["completed", "failed", "cancelled"] | None = None,
) -> None:
    """A call that became a task has ended. tasks/get has its result."""


@event(name="todo.changed", payload=TodoChangePayload, scope=WORKFLOW, tool="TaskManager")
def todo_changed(
    task_id: Annotated[int | None, "the task"] = None,
    change: Literal["created", "step_added", "step_completed", "completed"] | None = None,
) -> None:
    """A task of TaskManager, or a step of it, was added or completed."""


@event(name="file.changed", payload=FileChangePayload, scope=READ)
def files_changed(path: WatchedFile) -> None:
    """A file has changed, or an entry of a folder, not of the folders below it. Close changes come as one event."""


@event(name="call.refused", payload=RefusalPayload, scope=READ)
def call_refused(tool: Annotated[str | None, "the tool that was called"] = None) -> None:
    """A rule of this server has refused a call."""


EVENTS: tuple[EventType, ...] = (
    command_ended,
    output_matched,
    callback_fired,
    question_answered,
    task_ended,
    todo_changed,
    files_changed,
    call_refused,
)

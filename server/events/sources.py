"""Say in events what happens in other rooms: each method is called where it happens.

Those that take a connection run in the transaction that makes it happen, so the event is stored exactly if that is.
"""

import asyncio
import logging
from collections.abc import Callable
from typing import TYPE_CHECKING

from toolgate.server.calls.pending_questions import QuestionView
from toolgate.server.calls.tasks import tool_of
from toolgate.server.events.log import EventLog
from toolgate.server.policy.rules import Rule
from toolgate.server.protocol.task import StoredTask
from toolgate.server.state.callback_timer import Firing
from toolgate.tools.api.errors import ToolError
from toolgate.tools.api.services import Todo
from toolgate.tools.builtin import events as types
from toolgate.tools.workspace.ansi import clean_output
from toolgate.tools.workspace.output_text import shorten_command
from toolgate.tools.workspace.run_record import Run
from toolgate.tools.workspace.workspace import Workspace

if TYPE_CHECKING:
    from toolgate.server.state.store import Connection

MAX_COMMAND = 200  # characters of a command
TAIL = 4_096  # bytes of output of which the last lines are told
LINES = 20  # of them: a model sees how a build ended, and reads the rest with ReadBgOutput

log = logging.getLogger("toolgate.events")


class EventSources:
    """What happens to principals. `find_workspace(principal)` opens none."""

    def __init__(self, events: EventLog, find_workspace: Callable[[str], Workspace | None]) -> None:
        self._log = events
        self._find_workspace = find_workspace
        self._tasks: set[asyncio.Task[None]] = set()

    def emit_command_end(self, principal: str, run: Run) -> None:
        """A background task has ended, or is lost."""
        if run.status != "running" and self._log.has_interest(principal):
            task = asyncio.get_running_loop().create_task(self._emit_command_end(principal, run))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    def emit_answer(self, principal: str, question: QuestionView, action: str) -> None:
        """A person has answered a question on the server's page."""
        payload = types.AnswerPayload(question.id, question.tool, action, question.approval is not None)
        self._log.emit_soon(principal, types.question_answered, payload, question.id)

    def emit_refusal(self, principal: str, tool: str, rule: Rule | None) -> None:
        """A rule has refused a call."""
        self._log.emit_soon(
            principal, types.call_refused, types.RefusalPayload(tool, "" if rule is None else str(rule))
        )

    def record_firing(self, connection: "Connection", firing: Firing, number: int) -> None:
        """A callback fires."""
        payload = types.FiringPayload(firing.slot, firing.message, firing.remaining)
        self._log.record(connection, firing.principal, types.callback_fired, str(number), payload)

    def record_task_end(self, connection: "Connection", task: StoredTask) -> None:
        """A call that became a task has ended."""
        payload = types.TaskEndPayload(task.id, tool_of(task.id), task.status)
        self._log.record(connection, task.principal, types.task_ended, task.id, payload)

    def record_todo_change(
        self, connection: "Connection", principal: str, todo: Todo, change: str, step: int | None
    ) -> None:
        """A todo or one of its steps was added or completed."""
        left = sum(not each.completed for each in todo.steps)
        payload = types.TodoChangePayload(todo.id, todo.name, change, step, todo.completed, left)
        self._log.record(connection, principal, types.todo_changed, None, payload)

    async def close(self) -> None:
        """Wait a second at most for the events of commands that have just ended."""
        if self._tasks:
            await asyncio.wait(list(self._tasks), timeout=1.0)

    async def _emit_command_end(self, principal: str, run: Run) -> None:
        command = shorten_command(run.command, MAX_COMMAND)
        lines = await self._read_last_lines(principal, run)
        payload = types.CommandEndPayload(run.id, command, run.status, run.exit_code, run.runtime_ms, lines)
        self._log.emit_soon(principal, types.command_ended, payload, f"{run.id} {run.started}")

    async def _read_last_lines(self, principal: str, run: Run) -> str:
        workspace = self._find_workspace(principal)
        if workspace is None:
            return ""
        try:
            size = await workspace.size(run.id)
            begin = max(0, size - TAIL)
            data = await workspace.read(run.id, begin, TAIL)
        except (KeyError, ToolError):  # forgotten meanwhile, or its node can't be reached
            return ""
        if begin:
            data = data[data.find(b"\n") + 1 :]
        text, _ = clean_output(data, final=True)
        return "\n".join(text.splitlines()[-LINES:])

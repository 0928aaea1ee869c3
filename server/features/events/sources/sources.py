"""Say in events what happens in other rooms: each method is called where it happens.

Those that take a connection run in the transaction that makes it happen, so the event is stored exactly if that is.
"""

from typing import TYPE_CHECKING

from toolgate.server.base.task import StoredTask
from toolgate.server.calls.policy.rules import Rule
from toolgate.server.calls.question import QuestionView
from toolgate.server.calls.tasks import tool_of
from toolgate.server.features.events.log.log import EventLog
from toolgate.server.features.events.sources import types as types
from toolgate.server.state.rows.callback_timer import Firing
from toolgate.tools.api.context.services import Todo

if TYPE_CHECKING:
    from toolgate.server.state.store import Connection


class EventSources:
    """What happens to principals."""

    def __init__(self, events: EventLog) -> None:
        self._log = events

    async def emit_answer(self, principal: str, question: QuestionView, action: str) -> None:
        """A person has answered a question on the server's page."""
        payload = types.AnswerPayload(question.id, question.tool, action, question.approval is not None)
        await self._log.emit_promptly(principal, types.question_answered, payload, question.id)

    async def emit_refusal(self, principal: str, tool: str, rule: Rule | None) -> None:
        """A rule has refused a call."""
        await self._log.emit_promptly(
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

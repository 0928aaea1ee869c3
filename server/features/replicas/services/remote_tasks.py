"""Reach the tasks of other replicas: answers and cancellations go to the owner by mail, changes come by a topic.

The row names the owner. A task of a dead one is adopted, as `CallTasks.find` does.
"""

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping

import msgspec
from msgspec.structs import replace

from toolgate.server.base.bus.bus import Bus, BusUnreachableError, NoReplyError, UndeliveredError
from toolgate.server.base.errors import StateError
from toolgate.server.base.task import StoredTask
from toolgate.server.calls.task_requests import TaskRequest, carry_out
from toolgate.server.calls.tasks import CallTasks
from toolgate.server.protocol.errors import InternalError, InvalidParams
from toolgate.server.protocol.notifications import Notifications

UPDATE, CANCEL = "task update", "task cancel"  # kinds of mail
CHANGES = "tasks"  # topic
UNKNOWN = "the server process that works on this task did not answer: it is not known whether this was done"

log = logging.getLogger("toolgate.deferrals")


class TaskReply(msgspec.Struct, frozen=True, omit_defaults=True):
    """What the owner did. `is_running`: it has the task. `problem`: why the answers are refused."""

    is_running: bool
    problem: str = ""


class RemoteTasks:
    """The tasks of all replicas, beside those that run here: `tasks`, whose changes go to `notify`."""

    def __init__(self, bus: Bus, tasks: CallTasks, notifications: Notifications) -> None:
        self._bus = bus
        self._tasks = tasks
        self._notifications = notifications
        self._reading: set[asyncio.Task[None]] = set()
        bus.mail.receive(UPDATE, self._handle)
        bus.mail.receive(CANCEL, self._handle)
        bus.topics.subscribe(CHANGES, self._receive, self._look_again)

    async def send(self, owner: str, request: TaskRequest) -> bool:
        """Have the owner carry out a request. Return False if it can't be reached, or does not run the task any more.

        Raises InvalidParams, and InternalError if it is not known whether it did.
        """
        kind = CANCEL if request.answers is None else UPDATE
        try:
            data = await self._bus.mail.send(owner, kind, msgspec.json.encode(request))
        except UndeliveredError:
            return False
        except (NoReplyError, BusUnreachableError) as error:
            log.warning("the owner of task %s did not answer: %s", request.id, error)
            raise InternalError(UNKNOWN) from None
        reply = msgspec.json.decode(data, type=TaskReply)
        if reply.problem:
            raise InvalidParams(reply.problem)
        return reply.is_running

    def notify(self, kept: StoredTask) -> bool:
        """Notify the subscriptions here and at other replicas. Return whether there is one here."""
        self._bus.topics.publish(CHANGES, msgspec.msgpack.encode(replace(kept, outcome=None)))
        return self._notifications.notify_task(kept)

    async def _handle(self, data: bytes) -> bytes:
        request = msgspec.json.decode(data, type=TaskRequest)
        task = self._tasks.find_running(request.principal, request.id)
        problem = ""
        if task is not None:
            try:
                await carry_out(self._tasks, task, request)
            except InvalidParams as error:
                problem = error.message
        return msgspec.json.encode(TaskReply(task is not None, problem))

    def _receive(self, data: bytes) -> None:
        """Notify the subscriptions here of a task of another replica. The outcome is in the row."""
        kept = msgspec.msgpack.decode(data, type=StoredTask)
        if kept.process == self._bus.replica.name:
            return
        if kept.is_live:
            self._notifications.notify_task(kept)
        else:
            self._look(lambda id, principal: (id, principal) == (kept.id, kept.principal))

    def _look_again(self) -> None:
        """Notify all subscriptions to tasks: changes may have been lost."""
        self._look(lambda _id, _principal: True)

    def _look(self, is_wanted: Callable[[str, str], bool]) -> None:
        """Read the tasks that are subscribed to here, and notify their subscriptions."""
        wanted: dict[str, set[str]] = {}
        for listener in self._notifications.subscriptions:
            ids = {id for id in listener.tasks if is_wanted(id, listener.principal)}
            if ids:
                wanted.setdefault(listener.principal, set()).update(ids)
        if wanted:
            reading = asyncio.get_running_loop().create_task(self._read(wanted))
            self._reading.add(reading)
            reading.add_done_callback(self._reading.discard)

    async def _read(self, wanted: Mapping[str, Iterable[str]]) -> None:
        for principal, ids in wanted.items():
            try:
                for kept in (await self._tasks.find(principal, ids)).values():
                    self._notifications.notify_task(kept)
            except StateError as error:
                log.warning("the state of tasks can't be read: %s", error)

"""A principal's tasks and which of them is current, in the state database. Knows nothing of the tool that
shows them."""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from toolgate.server.state import tables
from toolgate.server.state.store import Store
from toolgate.tools import ToolError
from toolgate.tools.api.context import Todo, TodoStep

if TYPE_CHECKING:
    from sqlalchemy import ColumnElement, Connection

MAX_OPEN = 1_000  # open tasks of a principal: a client in a loop must not fill the disk
MAX_DONE = 4_000  # completed ones; the oldest make room for new ones
MAX_STEPS = 200  # of a task
FORGET = 30 * 86_400.0  # seconds after which the current task of a session that never said goodbye is forgotten


@dataclass(frozen=True, slots=True)
class TodoOutline:
    """A task with its first steps alone: there are `count`, and `done` of them are completed."""

    task: Todo
    count: int
    completed: int


class TodoStore:
    """The `Tasks` of toolgate.tools.api.context, for one principal; `session` is the place's key, "" where there
    is none."""

    def __init__(self, store: Store, principal: str, session: str) -> None:
        self.store = store
        self.principal = principal
        self.session = session

    async def create(self, name: str) -> Todo:
        """Raises ToolError when the principal has too many open tasks."""

        def create(connection: "Connection") -> Todo:
            _make_room(connection, self.principal)
            task_id = _insert(connection, self.principal, name)
            self._focus(connection, task_id)
            return self._find(connection, task_id)

        return await self.store.transact(create)

    async def add(self, task_id: int, text: str) -> Todo:
        """Append a step; a completed task is open again. Raises KeyError, or ToolError when it has too many
        steps."""

        def add(connection: "Connection") -> Todo:
            taken = len(self._find(connection, task_id).steps)
            if taken >= MAX_STEPS:
                raise ToolError(f"task {task_id} has {MAX_STEPS} steps, the most there are: create another task")
            row = {"task_id": task_id, "number": taken + 1, "text": text, "completed": False}
            connection.execute(tables.step.insert().values(row))
            _set_completed(connection, task_id, False)
            return self._find(connection, task_id)

        return await self.store.transact(add)

    async def complete(self, task_id: int, step: int | None = None) -> Todo:
        """Complete a step, or the task itself, whose steps stay as they are. Raises KeyError; LookupError: no
        such step."""

        def complete(connection: "Connection") -> Todo:
            known = [held.number for held in self._find(connection, task_id).steps]
            if step is None:
                _set_completed(connection, task_id, True)
            elif step in known:
                steps = tables.step
                this = (steps.c.task_id == task_id) & (steps.c.number == step)
                connection.execute(steps.update().where(this).values(completed=True))
            else:
                raise LookupError(step)
            return self._find(connection, task_id)

        return await self.store.transact(complete)

    async def switch(self, task_id: int) -> Todo:
        """Make a task current: of the session, and of the principal for those who come later. Raises
        KeyError."""

        def switch(connection: "Connection") -> Todo:
            self._find(connection, task_id)
            self._focus(connection, task_id)
            return self._find(connection, task_id)

        return await self.store.transact(switch)

    async def kept(self) -> bool:
        """False only where no principal ever had a task. Opens no database."""
        return not self.store.is_empty()

    async def all(self) -> Sequence[Todo]:
        return await self.store.transact(lambda connection: self._read(connection, None))

    async def list_first(self, most: int, steps: int) -> tuple[list[TodoOutline], int]:
        """So many tasks with so many steps each, the open ones first, then the current one and the newest; and how many
        tasks there are in all."""

        def look(connection: "Connection") -> tuple[list[TodoOutline], int]:
            task, current = tables.task, self._current(connection)
            mine = task.c.principal == self.principal
            by = (task.c.completed, task.c.id != (current or 0), task.c.id.desc())
            rows = connection.execute(task.select().where(mine).order_by(*by).limit(most)).all()
            held = _outlines(connection, [row.id for row in rows], steps)
            total = connection.execute(tables.select(tables.func.count()).select_from(task).where(mine)).scalar_one()
            return [
                TodoOutline(Todo(row.id, row.name, row.id == current, row.completed, first), count, done)
                for row in rows
                for first, count, done in [held.get(row.id, ([], 0, 0))]
            ], total

        return await self.store.transact(look)

    async def current(self) -> int | None:
        return await self.store.transact(self._current)

    def _find(self, connection: "Connection", task_id: int) -> Todo:
        if not 0 < task_id < 2**63:  # SQLite has no such integer
            raise KeyError(task_id)
        found = self._read(connection, task_id)
        if not found:
            raise KeyError(task_id)
        return found[0]

    def _read(self, connection: "Connection", task_id: int | None) -> list[Todo]:
        task, step = tables.task, tables.step
        wanted = task.c.principal == self.principal
        if task_id is not None:
            wanted &= task.c.id == task_id
        held: dict[int, list[TodoStep]] = {}
        for row in connection.execute(step.select().join(task).where(wanted).order_by(step.c.number)):
            held.setdefault(row.task_id, []).append(TodoStep(row.number, row.text, row.completed))
        current = self._current(connection)
        return [
            Todo(row.id, row.name, row.id == current, row.completed, held.get(row.id, []))
            for row in connection.execute(task.select().where(wanted).order_by(task.c.id))
        ]

    def _current(self, connection: "Connection") -> int | None:
        focus = tables.focus
        rows = connection.execute(focus.select().where(self._is_own()))
        by_session: dict[str, int] = {row.session: row.task_id for row in rows}
        return by_session.get(self.session, by_session.get(""))

    def _focus(self, connection: "Connection", task_id: int) -> None:
        focus, now = tables.focus, time.time()
        forgotten = (focus.c.session != "") & (focus.c.set_at < now - FORGET)
        connection.execute(focus.delete().where(self._is_own() | forgotten))
        row = {"principal": self.principal, "task_id": task_id, "set_at": now}
        rows = [{**row, "session": session} for session in {"", self.session}]
        connection.execute(focus.insert(), rows)

    def _is_own(self) -> "ColumnElement[bool]":
        of = tables.focus.c
        return (of.principal == self.principal) & of.session.in_(["", self.session])


def _insert(connection: "Connection", principal: str, name: str) -> int:
    row = {"principal": principal, "name": name, "completed": False}
    made = connection.execute(tables.task.insert().values(row)).inserted_primary_key
    assert made is not None  # one row of a table with a key
    return int(made[0])


def _outlines(connection: "Connection", ids: Sequence[int], most: int) -> dict[int, tuple[list[TodoStep], int, int]]:
    """Of each task that has steps: the first of them, how many there are, and how many of these are completed."""
    step = tables.step
    of_these = step.c.task_id.in_(ids)
    columns = (step.c.task_id, tables.func.count(), tables.func.sum(step.c.completed))
    counts = tables.select(*columns).where(of_these).group_by(step.c.task_id)
    found: dict[int, tuple[list[TodoStep], int, int]] = {
        id: ([], count, int(done)) for id, count, done in connection.execute(counts)
    }
    first = step.select().where(of_these & (step.c.number <= most)).order_by(step.c.number)
    for row in connection.execute(first):
        found[row.task_id][0].append(TodoStep(row.number, row.text, row.completed))
    return found


def _set_completed(connection: "Connection", task_id: int, completed: bool) -> None:
    task = tables.task
    connection.execute(task.update().where(task.c.id == task_id).values(completed=completed))


def _make_room(connection: "Connection", principal: str) -> None:
    task = tables.task
    rows = task.select().where(task.c.principal == principal).order_by(task.c.id)
    held = connection.execute(rows.with_only_columns(task.c.id, task.c.completed)).all()
    done = [row.id for row in held if row.completed]
    if len(held) - len(done) >= MAX_OPEN:
        raise ToolError(f"there are {MAX_OPEN} open tasks, the most there can be: complete some first")
    surplus = done[: max(0, len(done) - MAX_DONE)]
    if surplus:
        connection.execute(task.delete().where(task.c.id.in_(surplus)))

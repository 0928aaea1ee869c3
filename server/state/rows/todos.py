"""Store a principal's todos (the TaskManager tool), and which one is current."""

from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from toolgate.server.state import tables
from toolgate.server.state.store import Store
from toolgate.tools.api.context.services import Todo, TodoStep
from toolgate.tools.api.errors import ToolError

MAX_OPEN = 1_000  # open todos of a principal: a client in a loop must not fill the disk
MAX_DONE = 4_000  # completed ones; the oldest make room for new ones
MAX_STEPS = 200  # of a todo
PIECE = 1_000  # completed ones that one new todo removes at most
FORGET = 30 * 86_400.0  # seconds after which the current todo of a session that never ended is forgotten


class TodoOutline(msgspec.Struct, frozen=True):
    """A todo with its first steps only: of `count` steps, `completed` are done."""

    task: Todo
    count: int
    completed: int


# Called in the transaction that changes a todo: principal, todo, change, and the number of the step or None
RecordTodoChange = Callable[["tables.Connection", str, Todo, str, int | None], None]


class TodoStore:
    """The `Todos` (tools/api/context/services.py) of one principal; `session` is the place's key, or ""."""

    def __init__(self, store: Store, principal: str, session: str, record: "RecordTodoChange | None" = None) -> None:
        self._record = record
        self.store = store
        self.principal = principal
        self.session = session

    async def create(self, name: str) -> Todo:
        """Create a todo and make it current. Raises ToolError when the principal has too many open ones."""

        def create(connection: "tables.Connection") -> Todo:
            _make_room(connection, self.principal)
            task_id = _insert(connection, self.principal, name)
            self._focus(connection, task_id)
            return self._find_changed(connection, task_id, "created", None)

        return await self.store.transact(create, alone=("todos", self.principal))

    async def add(self, task_id: int, text: str) -> Todo:
        """Append a step; a completed todo is open again. Raises KeyError, or ToolError for too many steps
        or open todos."""

        def add(connection: "tables.Connection") -> Todo:
            found = self._find(connection, task_id)
            count = len(found.steps)
            if found.completed:
                _check_open(connection, self.principal)
            if count >= MAX_STEPS:
                raise ToolError(f"task {task_id} has {MAX_STEPS} steps, the most there are: create another task")
            row = {"task_id": task_id, "number": count + 1, "text": text, "completed": False}
            connection.execute(tables.step.insert().values(row))
            _set_completed(connection, task_id, False)
            return self._find_changed(connection, task_id, "step_added", count + 1)

        return await self.store.transact(add, alone=("todos", self.principal))

    async def complete(self, task_id: int, step: int | None = None) -> Todo:
        """Complete a step, or the todo itself, which leaves its steps unchanged. Raises KeyError, or LookupError."""

        def complete(connection: "tables.Connection") -> Todo:
            numbers = [each.number for each in self._find(connection, task_id).steps]
            if step is None:
                _set_completed(connection, task_id, True)
            elif step in numbers:
                steps = tables.step
                this = (steps.c.task_id == task_id) & (steps.c.number == step)
                connection.execute(steps.update().where(this).values(completed=True))
            else:
                raise LookupError(step)
            change = "completed" if step is None else "step_completed"
            return self._find_changed(connection, task_id, change, step)

        return await self.store.transact(complete, alone=("todos", self.principal))

    async def switch(self, task_id: int) -> Todo:
        """Make a todo current, in the session and for later sessions of the principal. Raises KeyError."""

        def switch(connection: "tables.Connection") -> Todo:
            self._find(connection, task_id)
            self._focus(connection, task_id)
            return self._find(connection, task_id)

        return await self.store.transact(switch, alone=("todos", self.principal))

    async def may_exist(self) -> bool:
        """Return False only where nothing was ever stored. Opens no database."""
        return not self.store.is_empty()

    async def all(self) -> Sequence[Todo]:
        return await self.store.read(self._read)

    async def list_open(self) -> Sequence[Todo]:
        """Return those that are not completed, by id."""
        return await self.store.read(lambda connection: self._read(connection, ~tables.task.c.completed))

    async def list_newest(self, most: int) -> tuple[Sequence[Todo], int]:
        """Return the `most` newest, by id, and the number of all."""
        task = tables.task
        mine = task.c.principal == self.principal
        newest = tables.select(task.c.id).where(mine).order_by(task.c.id.desc()).limit(most)
        count = tables.select(tables.func.count()).select_from(task).where(mine)
        return await self.store.read(
            lambda connection: (
                self._read(connection, task.c.id.in_(newest)),
                int(connection.execute(count).scalar_one()),
            )
        )

    async def list_ids(self) -> Sequence[int]:
        """Return the ids of all, the newest first."""
        task = tables.task
        mine = tables.select(task.c.id).where(task.c.principal == self.principal).order_by(task.c.id.desc())
        return await self.store.read(lambda connection: list(connection.execute(mine).scalars()))

    async def find(self, task_id: int) -> Todo:
        """Return one. Raises KeyError."""
        return await self.store.read(lambda connection: self._find(connection, task_id))

    async def list_first(self, most: int, steps: int) -> tuple[list[TodoOutline], int]:
        """Return `most` todos with `steps` steps each, and the number of all todos.

        Open ones come first, then the current one, then the newest.
        """

        def look(connection: "tables.Connection") -> tuple[list[TodoOutline], int]:
            task, current = tables.task, self._current(connection)
            mine = task.c.principal == self.principal
            rows = self._list_first(connection, ~task.c.completed, current, most)
            rows += self._list_first(connection, task.c.completed, current, most - len(rows))
            outlines = _outlines(connection, [row.id for row in rows], steps)
            total = connection.execute(tables.select(tables.func.count()).select_from(task).where(mine)).scalar_one()
            return [
                TodoOutline(Todo(row.id, row.name, row.id == current, row.completed, first), count, done)
                for row in rows
                for first, count, done in [outlines.get(row.id, ([], 0, 0))]
            ], total

        return await self.store.read(look)

    def _list_first(
        self, connection: "tables.Connection", condition: "tables.ColumnElement[bool]", current: int | None, most: int
    ) -> list[Any]:
        """Return the rows of the current todo and of the newest, as far as they fulfil the condition."""
        task = tables.task
        mine = task.select().where(task.c.principal == self.principal, condition)
        first = connection.execute(mine.where(task.c.id == current)).all() if current is not None else []
        others = mine.where(task.c.id != (current or 0)).order_by(task.c.id.desc()).limit(max(0, most - len(first)))
        return [*first, *connection.execute(others)][: max(0, most)]

    async def current(self) -> int | None:
        return await self.store.read(self._current)

    def _find(self, connection: "tables.Connection", task_id: int) -> Todo:
        if not 0 < task_id < 2**63:  # the database has no such integer
            raise KeyError(task_id)
        found = self._read(connection, tables.task.c.id == task_id)
        if not found:
            raise KeyError(task_id)
        return found[0]

    def _read(self, connection: "tables.Connection", only: "tables.ColumnElement[bool] | None" = None) -> list[Todo]:
        """Return the todos, or those alone that fulfil a condition, by id."""
        task, step = tables.task, tables.step
        condition = task.c.principal == self.principal
        if only is not None:
            condition &= only
        rows_by_task: dict[int, list[TodoStep]] = {}
        for row in connection.execute(step.select().join(task).where(condition).order_by(step.c.number)):
            rows_by_task.setdefault(row.task_id, []).append(TodoStep(row.number, row.text, row.completed))
        current = self._current(connection)
        return [
            Todo(row.id, row.name, row.id == current, row.completed, rows_by_task.get(row.id, []))
            for row in connection.execute(task.select().where(condition).order_by(task.c.id))
        ]

    def _find_changed(self, connection: "tables.Connection", task_id: int, change: str, step: int | None) -> Todo:
        """Return a todo that this transaction has changed, and have the change recorded."""
        found = self._find(connection, task_id)
        if self._record is not None:
            self._record(connection, self.principal, found, change, step)
        return found

    def _current(self, connection: "tables.Connection") -> int | None:
        focus = tables.focus
        rows = connection.execute(focus.select().where(self._is_own()))
        by_session: dict[str, int] = {row.session: row.task_id for row in rows}
        return by_session.get(self.session, by_session.get(""))

    def _focus(self, connection: "tables.Connection", task_id: int) -> None:
        focus, now = tables.focus, self.store.now()
        connection.execute(focus.delete().where(self._is_own()))
        connection.execute(focus.delete().where(focus.c.session != "", focus.c.set_at < now - FORGET))
        row = {"principal": self.principal, "task_id": task_id, "set_at": now}
        rows = [{**row, "session": session} for session in {"", self.session}]
        connection.execute(focus.insert(), rows)

    def _is_own(self) -> "tables.ColumnElement[bool]":
        columns = tables.focus.c
        return (columns.principal == self.principal) & columns.session.in_(["", self.session])


def _insert(connection: "tables.Connection", principal: str, name: str) -> int:
    row = {"principal": principal, "name": name, "completed": False}
    key = connection.execute(tables.task.insert().values(row)).inserted_primary_key
    assert key is not None  # one row of a table with a key
    return int(key[0])


def _outlines(
    connection: "tables.Connection", ids: Sequence[int], most: int
) -> dict[int, tuple[list[TodoStep], int, int]]:
    """Return the first steps of each todo that has any, their number, and the number of completed ones."""
    step = tables.step
    of_these = step.c.task_id.in_(ids)
    columns = (step.c.task_id, tables.func.count(), tables.func.count().filter(step.c.completed))
    counts = tables.select(*columns).where(of_these).group_by(step.c.task_id)
    found: dict[int, tuple[list[TodoStep], int, int]] = {
        id: ([], count, done) for id, count, done in connection.execute(counts)
    }
    first = step.select().where(of_these & (step.c.number <= most)).order_by(step.c.number)
    for row in connection.execute(first):
        found[row.task_id][0].append(TodoStep(row.number, row.text, row.completed))
    return found


def _set_completed(connection: "tables.Connection", task_id: int, completed: bool) -> None:
    connection.execute(tables.task.update().where(tables.task.c.id == task_id).values(completed=completed))


def _check_open(connection: "tables.Connection", principal: str) -> None:
    """Raise ToolError if the principal can have no further open todo."""
    task = tables.task
    mine = task.c.principal == principal
    if _may_have(connection, mine & ~task.c.completed, MAX_OPEN):
        count = tables.select(tables.func.count()).select_from(task).where(mine, ~task.c.completed)
        if connection.execute(count).scalar_one() >= MAX_OPEN:
            raise ToolError(f"there are {MAX_OPEN} open tasks, the most there can be: complete some first")


def _make_room(connection: "tables.Connection", principal: str) -> None:
    _check_open(connection, principal)
    task = tables.task
    mine = task.c.principal == principal
    if _may_have(connection, mine & task.c.completed, MAX_DONE + 1):
        newest = tables.select(task.c.id).where(mine, task.c.completed).order_by(task.c.id.desc())
        surplus = list(connection.execute(newest.offset(MAX_DONE).limit(PIECE)).scalars())
        connection.execute(task.delete().where(task.c.id.in_(surplus)))


def _may_have(connection: "tables.Connection", condition: "tables.ColumnElement[bool]", count: int) -> bool:
    """Return False if so few ids lie between the first and the last todo that there are less than `count`.

    That needs no walk over them.
    """
    ids = tables.select(tables.task.c.id).where(condition)
    first = connection.execute(ids.order_by(tables.task.c.id).limit(1)).scalar()
    last = connection.execute(ids.order_by(tables.task.c.id.desc()).limit(1)).scalar()
    return first is not None and last is not None and last - first + 1 >= count

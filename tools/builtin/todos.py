"""TaskManager: keep a to-do list of tasks with steps, one of them current."""

from collections.abc import Sequence
from typing import Annotated, Literal

import msgspec

from toolgate.tools.api.content import Output, ResourceLink, Text
from toolgate.tools.api.context.context import Context
from toolgate.tools.api.context.services import Todo
from toolgate.tools.api.errors import NotFound, ToolError
from toolgate.tools.api.resource import resource
from toolgate.tools.api.text.cleaning import format_number, refuse_control_characters
from toolgate.tools.api.tool import tool

MAX_TEXT = 1_000  # characters of a name or a step: a line of a list, not a document
MAX_LISTED = 100  # tasks in one answer: a model's context costs its user money
MAX_CHARACTERS = 50_000  # characters of names and steps in one answer
MAX_SHOWN = 1_000  # tasks in task://list and in resources/list: the most that can be open
MAX_DIGITS = 20  # of an id: the database has no longer ones
MAX_SHOWN_CHARACTERS = 1_000_000  # of names and steps in task://list

Action = Literal["create", "add", "complete", "list", "pending", "switch"]


class StepRow(msgspec.Struct, frozen=True):
    step_id: int
    text: str
    completed: bool


class TaskRow(msgspec.Struct, frozen=True):
    task_id: int
    name: str
    current: bool
    completed: bool
    steps: list[StepRow]


class TaskList(msgspec.Struct, frozen=True, omit_defaults=True):
    task_id: int | None
    tasks: list[TaskRow]
    note: str | None = None  # what the text says besides


class AllTasks(msgspec.Struct, frozen=True):
    """All tasks; `older` counts those left out when there are too many."""

    task_id: int | None
    tasks: list[TaskRow]
    older: int


TASK_LIST_URI = "task://list"


@resource(
    TASK_LIST_URI,
    name="tasks",
    title="Tasks",
    mime_type="application/json",
    scope="tools:workflow",
    owns_scheme=True,
    tool="TaskManager",
)
async def task_list(ctx: Context) -> AllTasks:
    """All tasks with their steps, as TaskManager keeps them."""
    newest, count = await ctx.todos.list_newest(MAX_SHOWN)
    shown = _newest(newest, MAX_SHOWN, MAX_SHOWN_CHARACTERS)
    return AllTasks(await ctx.todos.current(), [_to_row(task) for task in shown], count - len(shown))


@resource("task://{id}", name="task", title="Task", mime_type="application/json", scope="tools:workflow")
async def one_task(id: str, ctx: Context) -> TaskRow:
    """One task with its steps."""
    try:
        found = await ctx.todos.find(int(id) if id.isascii() and id.isdigit() and len(id) < MAX_DIGITS else 0)
    except KeyError:
        found = None
    if found is None or str(found.id) != id:
        raise NotFound(f"there is no task {id!r}")
    return _to_row(found)


@one_task.listing
async def each_task(ctx: Context) -> list[ResourceLink]:
    """Return links to the open tasks; completed ones can be read too."""
    if not await ctx.todos.may_exist():
        return []
    held = await ctx.todos.list_open()
    return [ResourceLink(_uri(task.id), task.name, mime_type="application/json") for task in held[-MAX_SHOWN:]]


@one_task.completion("id")
async def task_ids(value: str, ctx: Context) -> list[str]:
    return [word for word in map(str, await ctx.todos.list_ids()) if word.startswith(value)]


@tool(
    name="TaskManager",
    title="Task manager",
    destructive=False,
    open_world=False,
    output=TaskList,
    scope="tools:workflow",
    in_plan=True,
)
async def task_manager(
    action: Action,
    query: Annotated[str, 'name of the task to act on, or filter of a list; "" for none'],
    ctx: Context,
    task_id: Annotated[int | None, "default: by query, else the current task"] = None,
    step_id: Annotated[int | None, "step to complete, from 1"] = None,
    text: Annotated[str | None, "name of the new task, or the step to add"] = None,
) -> Output:
    """Keep a to-do list across calls and restarts: use it for work of several steps.

    create a task (it becomes current), add steps to it, complete a step (or, without step_id, the task), switch the
    current task. list gives all tasks, pending the open ones, with their steps.
    """
    refuse_control_characters(query=query, text=text)
    query, text = (query.strip(), (text or "").strip())  # an action ignores arguments it does not use
    match action:
        case "create":
            return await _create(ctx, text or query)
        case "list" | "pending":
            return await _list(ctx, query, task_id, action == "pending")
        case "add":
            return await _add(ctx, await _resolve_id(ctx, action, task_id, query), text)
        case "complete":
            return await _complete(ctx, await _resolve_id(ctx, action, task_id, query), step_id)
        case "switch":
            return await _switch(ctx, task_id, query)


async def _create(ctx: Context, name: str) -> Output:
    name = " ".join(name.split())
    if not name:
        raise ToolError("create needs the task's name in text (or in query)")
    before = await ctx.todos.current()
    task = await ctx.todos.create(_check_length("name", name))
    _notify_changed(ctx, task.id, before)
    ctx.list_changed()
    return _to_output(task, f"Task {task.id} created, now current: {task.name}")


async def _add(ctx: Context, task_id: int, text: str) -> Output:
    if not text:
        raise ToolError("add needs the step in text")
    try:
        was_completed = (await ctx.todos.find(task_id)).completed
        task = await ctx.todos.add(task_id, _check_length("step", text))
    except KeyError:
        raise _unknown_task(task_id) from None
    _notify_changed(ctx, task.id)
    if was_completed:
        ctx.list_changed()
    state = ", which is open again" if was_completed else ""
    return _to_output(task, f"Step {task.steps[-1].number} added to task {task.id} ({task.name}){state}.")


async def _complete(ctx: Context, task_id: int, step_id: int | None) -> Output:
    try:
        task = await ctx.todos.complete(task_id, step_id)
    except KeyError:
        raise _unknown_task(task_id) from None
    except LookupError:
        raise ToolError(await _no_step(ctx, task_id, step_id)) from None
    _notify_changed(ctx, task.id)
    ctx.list_changed()
    count = sum(not step.completed for step in task.steps)
    left = f"{count} {'step' if count == 1 else 'steps'}"
    if step_id is None:
        rest = f" ({left} left open)" if count else ""
        return _to_output(task, f"Task {task.id} completed{rest}: {task.name}")
    rest = f"{left} to go." if count else "No step left: complete the task itself by leaving out step_id."
    return _to_output(task, f"Step {step_id} of task {task.id} completed. {rest}")


async def _switch(ctx: Context, task_id: int | None, query: str) -> Output:
    if task_id is None and not query:
        raise ToolError("switch needs task_id, or the task's name in query")
    wanted = await _resolve_id(ctx, "switch", task_id, query)
    before = await ctx.todos.current()
    try:
        task = await ctx.todos.switch(wanted)
    except KeyError:
        raise _unknown_task(wanted) from None
    _notify_changed(ctx, task.id, before)
    return _to_output(task, f"Task {task.id} is now current: {task.name}")


async def _list(ctx: Context, query: str, task_id: int | None, open_only: bool) -> Output:
    found, count = await _select(ctx, query, task_id, open_only)
    shown = _newest(found, MAX_LISTED, MAX_CHARACTERS)
    lines = [line for task in shown for line in _lines(task)]
    note = None
    if len(shown) < count:
        note = f"… and {count - len(shown)} older ones: narrow it down with query."
    elif not lines:
        kind = "open task" if open_only else "task"
        note = f"No {kind} mentions {query!r}." if query else f"There is no {kind}."
    current = await ctx.todos.current()
    text = "\n".join(lines if note is None else [*lines, note])
    return Output([Text(text)], TaskList(current, [_to_row(task) for task in shown], note))


async def _select(ctx: Context, query: str, task_id: int | None, open_only: bool) -> tuple[Sequence[Todo], int]:
    """Return the tasks to list, of many at least the newest that one answer holds, and how many there are."""
    if task_id is not None:
        try:
            tasks: Sequence[Todo] = [await ctx.todos.find(task_id)]
        except KeyError:
            raise _unknown_task(task_id) from None
    elif open_only:
        tasks = await ctx.todos.list_open()
    elif query:
        tasks = await ctx.todos.all()
    else:
        return await ctx.todos.list_newest(MAX_LISTED)
    found = [task for task in tasks if not (open_only and task.completed) and _mentions(task, query)]
    return found, len(found)


async def _resolve_id(ctx: Context, action: Action, task_id: int | None, query: str) -> int:
    """Return the task to act on: by id, else by name, else the current one. An open one wins over completed ones."""
    if task_id is not None:
        return task_id
    if query:
        open_ones = _find_by_name(await ctx.todos.list_open(), query)
        return _choose(open_ones or _find_by_name(await ctx.todos.all(), query), query)
    current = await ctx.todos.current()
    if current is None:
        raise ToolError(f"{action} needs a task, and none is current: give task_id or query, or create one first")
    return current


def _find_by_name(tasks: Sequence[Todo], query: str) -> list[Todo]:
    """Return the tasks with a name: a full name wins over a partial one."""
    wanted = query.casefold()
    found = [task for task in tasks if task.name.casefold() == wanted]
    return found or [task for task in tasks if wanted in task.name.casefold()]


def _choose(found: Sequence[Todo], query: str) -> int:
    """Return the id of the one task. Raises ToolError."""
    if not found:
        raise ToolError(f"no task is named {query!r}: list shows what there is")
    if len(found) > 1:
        names = ", ".join(f"{task.id} ({task.name})" for task in found[:5])
        more = ", …" if len(found) > 5 else ""
        raise ToolError(f"{query!r} names {len(found)} tasks: {names}{more}; give task_id")
    return found[0].id


async def _no_step(ctx: Context, task_id: int, step_id: int | None) -> str:
    try:
        held = await ctx.todos.find(task_id)
    except KeyError:  # removed since
        raise _unknown_task(task_id) from None
    if not held.steps:
        return f"task {format_number(task_id)} has no steps: add one, or leave out step_id to complete the task"
    last = held.steps[-1].number
    steps = f"its steps are 1 to {last}" if last > 1 else "its only step is 1"
    return f"task {format_number(task_id)} has no step {format_number(step_id)}: {steps}"


def _unknown_task(task_id: int) -> ToolError:
    return ToolError(f"there is no task {format_number(task_id)}: list shows the ids there are")


def _check_length(what: str, text: str) -> str:
    if len(text) > MAX_TEXT:
        raise ToolError(f"the {what} is {len(text)} characters long, {MAX_TEXT} are allowed: shorten it")
    return text


def _mentions(task: Todo, query: str) -> bool:
    wanted = query.casefold()
    return wanted in task.name.casefold() or any(wanted in step.text.casefold() for step in task.steps)


def _newest(tasks: Sequence[Todo], most: int, characters: int) -> list[Todo]:
    """Return as many tasks as one answer holds, by id; the oldest are left out."""
    shown: list[Todo] = []
    for task in reversed(tasks[-most:]):
        characters -= len(task.name) + sum(len(step.text) for step in task.steps)
        if shown and characters < 0:
            break
        shown.append(task)
    return shown[::-1]


def _lines(task: Todo) -> list[str]:
    head = f"{_box(task.completed)} task {task.id}: {task.name}{' (current)' if task.current else ''}"
    steps = [f"    {_box(step.completed)} {step.number}. {' '.join(step.text.split())}" for step in task.steps]
    return [head, *steps]


def _notify_changed(ctx: Context, *ids: int | None) -> None:
    """Notify the subscribers of these tasks and of the list."""
    for uri in (TASK_LIST_URI, *(_uri(id) for id in ids if id is not None)):
        ctx.updated(uri)


def _uri(task_id: int) -> str:
    return f"task://{task_id}"


def _box(done: bool) -> str:
    return "[x]" if done else "[ ]"


def _to_output(task: Todo, text: str) -> Output:
    return Output([Text(text)], TaskList(task.id, [_to_row(task)], text))


def _to_row(task: Todo) -> TaskRow:
    steps = [StepRow(step.number, step.text, step.completed) for step in task.steps]
    return TaskRow(task.id, task.name, task.current, task.completed, steps)

"""PlanMode: plan before changing anything, and write the plan to a file. The server refuses changes meanwhile."""

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Annotated, Literal

import msgspec

from toolgate.tools.api.content import Output, Text
from toolgate.tools.api.context.context import Context
from toolgate.tools.api.context.services import PlanState, Todo
from toolgate.tools.api.errors import ToolError
from toolgate.tools.api.resource import resource
from toolgate.tools.api.text.cleaning import one_line, refuse_control_characters
from toolgate.tools.api.tool import tool

MAX_GOAL = 4_000  # characters
SUFFIX = ".md"
PLAN_URI = "plan://current"


class PlanStatus(msgspec.Struct, frozen=True):
    active: bool
    goal: str
    plan_file: str | None
    started_at: str | None


class PlanResult(PlanStatus, frozen=True):
    note: str | None  # the text's note, if the text is no JSON


@resource(
    PLAN_URI,
    name="plan",
    title="Plan",
    mime_type="application/json",
    scope="tools:workflow",
    owns_scheme=True,
    tool="PlanMode",
)
async def current_plan(ctx: Context) -> PlanStatus:
    """The active plan, if any: its goal, its file and when it began."""
    return _to_status(await ctx.plan.state())


@tool(name="PlanMode", title="Plan mode", open_world=False, output=PlanResult, scope="tools:workflow", in_plan=True)
async def plan_mode(
    action: Literal["enter", "exit", "status", "json", "reset"],
    ctx: Context,
    goal: Annotated[str | None, "what to plan; enter needs it"] = None,
    plan_file: Annotated[str | None, "a .md file in the workspace, written on exit"] = None,
) -> Output:
    """Plan before acting: from enter to exit the tools that change things are refused.

    Bash runs read-only: look at files and git with it. Reading and TaskManager work. exit writes goal and open tasks to
    plan_file, if one was given. status and json tell the state; reset drops the plan unwritten.
    """
    goal, plan_file = (goal or "").strip(), (plan_file or "").strip() or None
    match action:
        case "enter":
            return await _enter(ctx, goal, plan_file)
        case "exit":
            return await _exit(ctx, plan_file)
        case "status":
            state = await ctx.plan.state()
            return _to_output(state, _status(state))
        case "json":
            state = await ctx.plan.state()
            return Output([Text(msgspec.json.encode(_to_status(state)).decode())], _to_result(state, None))
        case "reset":
            state = await ctx.plan.reset()
            ctx.updated(PLAN_URI)
            return _to_output(state, "Plan mode is off, and the plan is forgotten.")


async def _enter(ctx: Context, goal: str, plan_file: str | None) -> Output:
    refuse_control_characters(goal=goal, plan_file=plan_file)
    state = await ctx.plan.state()
    if state.active:
        raise ToolError(f"a plan is active already ({one_line(state.goal)}): exit or reset it first")
    if not goal:
        raise ToolError("enter needs the goal: say in a sentence what is to be planned")
    if len(goal) > MAX_GOAL:
        raise ToolError(f"the goal is {len(goal)} characters long, {MAX_GOAL} are allowed")
    if plan_file is not None:
        ctx.workspace.check_file(plan_file, suffix=SUFFIX)
    state = await ctx.plan.enter(goal, plan_file)
    ctx.updated(PLAN_URI)
    file = f" On exit it is written to {plan_file}." if plan_file else ""
    return _to_output(state, f"Plan mode is on: {one_line(goal)}. Leave it with exit.{file}")


async def _exit(ctx: Context, plan_file: str | None) -> Output:
    refuse_control_characters(plan_file=plan_file)
    state = await ctx.plan.state()
    if not state.active:
        raise ToolError("no plan is active: enter one first")
    path = plan_file or state.plan_file
    if path is not None:  # before the plan ends: if the write fails, the plan stays active
        document = _document(state, await ctx.todos.list_open())
        await ctx.workspace.write_file(path, document.encode(), suffix=SUFFIX)
    ended = await ctx.plan.exit(path)
    ctx.updated(PLAN_URI)
    written = f" The plan is in {path}." if path is not None else ""
    return _to_output(ended, f"Plan mode is off after {_format_duration(state)}.{written}")


def _status(state: PlanState) -> str:
    if state.active:
        file = f" On exit it is written to {state.plan_file}." if state.plan_file else ""
        return f"Plan mode is on for {_format_duration(state)}. Goal: {state.goal}{file}"
    if state.goal:
        return f"Plan mode is off. The last goal was: {state.goal}"
    return "Plan mode is off."


def _document(state: PlanState, tasks: Sequence[Todo]) -> str:
    """Return the plan as markdown: the goal, its times, and the open tasks as check lists."""
    now = datetime.now(UTC)
    lines = ["# Plan", "", state.goal, ""]
    lines += [f"- Started: {_format_time(state.started_at or now)}", f"- Ended: {_format_time(now)}"]
    lines += [f"- Took: {_format_duration(state)}", "", "## Tasks", ""]
    held = [task for task in tasks if not task.completed]
    for task in held:
        lines.append(f"- [ ] {one_line(task.name)}")
        lines += [f"    - [{'x' if step.completed else ' '}] {one_line(step.text)}" for step in task.steps]
    if not held:
        lines.append("No open tasks.")
    return "\n".join(lines) + "\n"


def _to_status(state: PlanState) -> PlanStatus:
    started = _format_time(state.started_at) if state.started_at is not None else None
    return PlanStatus(state.active, state.goal, state.plan_file, started)


def _to_output(state: PlanState, text: str) -> Output:
    return Output([Text(text)], _to_result(state, text))


def _to_result(state: PlanState, note: str | None) -> PlanResult:
    shown = _to_status(state)
    return PlanResult(shown.active, shown.goal, shown.plan_file, shown.started_at, note)


def _format_duration(state: PlanState) -> str:
    """Return the duration in its two largest units."""
    seconds = 0
    if state.started_at is not None:
        seconds = max(0, round((datetime.now(UTC) - state.started_at).total_seconds()))
    minutes, seconds = divmod(seconds, 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours} h {minutes} min"
    return f"{minutes} min {seconds} s" if minutes else f"{seconds} s"


def _format_time(time: datetime) -> str:
    return time.astimezone(UTC).isoformat(timespec="seconds").replace("+00:00", "Z")

"""tools/list and tools/call. Knows the registry; knows nothing of what a tool does."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec

from toolgate.server import shape
from toolgate.server.caller import Caller, InputRequired
from toolgate.server.errors import InvalidParams, MissingClientCapability
from toolgate.server.hold import Hold
from toolgate.server.server import Server
from toolgate.server.session import Call
from toolgate.tools.content import Output, Text
from toolgate.tools.context import Belongings, Context
from toolgate.tools.errors import CannotAsk
from toolgate.tools.notices import Notices
from toolgate.tools.tool import Tool

PLANNING = frozenset(("TaskManager", "PlanMode", "AskUserQuestion", "InvokeSkill", "SetCallback"))
HEARTBEAT = 10.0  # seconds between signs of life to a client that sent a progress token


def list_tools(server: Server) -> Callable[[Call], msgspec.Raw]:
    def answer(call: Call) -> msgspec.Raw:
        """tools/list: one page, so no cursor of ours exists."""
        if call.params.get("cursor") is not None:
            raise InvalidParams("unknown cursor")
        return server.tool_list(call.revision)

    return answer


def call_tool(server: Server) -> Callable[[Call], Awaitable[dict[str, Any]]]:
    hold = Hold(server.hold)

    async def answer(call: Call) -> dict[str, Any]:
        """tools/call. An unknown tool is an error of the request; what a tool says no to is a result."""
        name, arguments = call.params.get("name"), call.params.get("arguments")
        if not isinstance(name, str) or name not in server.registry:
            raise InvalidParams(f"unknown tool: {name!r}"[:200])
        if arguments is None:
            arguments = {}
        elif not isinstance(arguments, dict):
            raise InvalidParams("'arguments' must be an object")
        tool = server.registry[name]
        belongings = server.belongings(call.session)
        caller = Caller(call, server.seal, server.settings.hold, server.streaming)
        try:
            output = await _run(tool, arguments, belongings, caller, hold)
        except InputRequired as questions:
            return caller.input_required(questions)
        except CannotAsk as refusal:
            if call.revision.stateless:
                raise MissingClientCapability(refusal.text, {"requiredCapabilities": refusal.required}) from None
            output = Output([Text(refusal.text)], is_error=True)
        output = _with_notices(output, server.notices(call.session.principal), call)
        return shape.output(output, call.revision, tool.output is not None)

    return answer


async def _run(tool: Tool, arguments: dict[str, Any], belongings: Belongings, caller: Caller, hold: Hold) -> Output:
    if changes_things(tool) and await belongings.plan.active():
        return Output(
            [Text(f"{tool.name} is refused while a plan is active: finish planning with PlanMode exit first")],
            is_error=True,
        )
    task = asyncio.current_task()
    assert task is not None
    hold.take(task)
    if caller.wants_progress:
        caller.start_heartbeat(HEARTBEAT)
    try:
        return await tool.run(arguments, Context(belongings, caller))
    except asyncio.CancelledError:
        if not hold.release(task):
            raise
        return Output([Text(f"{tool.name} took too long and was stopped")], is_error=True)
    except BaseExceptionGroup as group:  # a question asked inside a task group
        questions = group.subgroup(InputRequired)
        if questions is None:
            raise
        raise InputRequired(_all_questions(questions)) from None
    finally:
        hold.release(task)
        caller.stop()


def changes_things(tool: Tool) -> bool:
    """Whether an active plan holds the tool back: what acts on the world, but not the planner's own notes."""
    return not tool.annotations.read_only and tool.name not in PLANNING


def _all_questions(group: BaseExceptionGroup[InputRequired]) -> dict[str, dict[str, Any]]:
    questions: dict[str, dict[str, Any]] = {}
    for part in group.exceptions:
        questions |= _all_questions(part) if isinstance(part, BaseExceptionGroup) else part.requests
    return questions


def _with_notices(output: Output, notices: Notices, call: Call) -> Output:
    """What happened meanwhile rides along as the last block, once; it is kept when the answer does not go out."""
    news = notices.take()
    if not news:
        return output
    if call.flight is not None:
        call.flight.undo = lambda: notices.restore(news)
    block = Text("Meanwhile:\n" + "\n".join(f"- {text}" for text in news.values()))
    return Output([*output.content, block], output.structured, output.is_error)

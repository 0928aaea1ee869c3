"""Answer tools/call: check the rules, run the tool and format what it returns."""

import asyncio
import logging
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from toolgate.server.base.text import escape_unprintable
from toolgate.server.calls.client import InputRequired
from toolgate.server.calls.tasks import LONGEST, CallTask
from toolgate.server.methods import approval, execution
from toolgate.server.methods.server import MethodFunction, Server
from toolgate.server.protocol import serialization
from toolgate.server.protocol.errors import InvalidParams, format_name
from toolgate.server.protocol.request_meta import client_name
from toolgate.server.protocol.session import Call
from toolgate.tools.api.content import Output, Text
from toolgate.tools.api.context.context import Context
from toolgate.tools.api.context.notices import Notices
from toolgate.tools.api.errors import CannotAskError, ToolError, UnansweredError, drop_tracebacks
from toolgate.tools.api.schema.schema import NEWS
from toolgate.tools.api.text.cleaning import closest
from toolgate.tools.api.tool import Tool, create_refusal
from toolgate.tools.workspace.workspace import Workspace

if TYPE_CHECKING:
    from toolgate.server.protocol.registry_views import WithheldPart

MAX_LOGGED = 1_000  # clients and names of arguments that are logged: a client may give itself any name
MAX_NAME = 100  # characters of each in the log
MARGIN = 60.0  # seconds before a task's end: then what it followed is said to go on

log = logging.getLogger("toolgate.calls")


async def call_tool(server: Server, call: Call) -> dict[str, Any]:
    """Return the tool's result for prepared arguments. An unknown tool is an error of the request; a tool's refusal is
    a result."""
    try:
        tool, arguments = _read_call(server, call)
    except InvalidParams:
        withheld = _find_withheld(server, call)
        if withheld is None:
            raise
        return await _refuse_withheld(server, call, withheld)
    too_many = await _find_excess(server, call, tool.scope)
    if too_many is not None:
        return await _finish(server, call, tool, _refusal(too_many))
    work = _work(server, call, tool, arguments)
    try:
        if execution.can_become_task(call, tool):
            return await execution.execute_or_defer(server, call, tool, work)
        return await execution.execute(server, call, work)
    except CannotAskError as refusal:
        output = create_refusal(refusal)
    except execution.TimeLimitError as error:
        drop_tracebacks(error)
        output = _refusal(f"{tool.name} took too long and was stopped")
    return await _finish(server, call, tool, output)


def with_prepared_arguments(server: Server, answer: MethodFunction) -> MethodFunction:
    """Return `answer` for calls whose arguments are prepared first."""
    logged: set[tuple[str, str]] = set()

    def prepare_and_answer(call: Call) -> Any:
        added = prepare_arguments(server, call)
        if added:
            _log_once(logged, call, added)
        return answer(call)

    return prepare_and_answer


def prepare_arguments(server: Server, call: Call) -> Sequence[str]:
    """Replace the call's arguments by those that the tool takes. Return the names of those that a client has added."""
    name, arguments = call.params.get("name"), call.params.get("arguments")
    tool = _find_tools(server, call).get(name) if isinstance(name, str) else None
    if tool is not None and tool.relay is not None:
        call.mounted = tool.mount or "", tool.relay.original
    if tool is None or not isinstance(arguments, dict):
        return ()
    prepared, added = tool.read_arguments(arguments)
    if prepared is arguments:
        call.valid_for = tool
    else:
        call.params = {**call.params, "arguments": prepared}
    return added


def _log_once(logged: set[tuple[str, str]], call: Call, added: Sequence[str]) -> None:
    """Log the names that this client has not sent before."""
    client = (call.session.client or client_name(call.meta))[:MAX_NAME]
    for name in added:
        key = client, name[:MAX_NAME]
        if key not in logged and len(logged) < MAX_LOGGED:
            logged.add(key)
            who, what = escape_unprintable(client) or "a client", escape_unprintable(name[:MAX_NAME])
            log.info('%s adds the argument "%s" to its calls: it is ignored', who, what)


def rerun_call(server: Server, task: CallTask, how: bytes) -> None:
    """Run the work of a task again after its server died, or go on following what it left running."""

    def prepare(call: Call, follows: str | None) -> tuple[Tool, execution.Work]:
        prepare_arguments(server, call)
        tool, arguments = _read_call(server, call)
        return tool, _work(server, call, tool, arguments, follows)

    execution.rerun(server, task, how, prepare)


def _work(
    server: Server, call: Call, tool: Tool, arguments: dict[str, Any], follows: str | None = None
) -> execution.Work:
    """Return the work of a call; `follows`: the state of what it left running before a restart."""

    async def work(context: Context) -> dict[str, Any]:
        try:
            if follows is not None:
                output = await _follow(tool, follows, context)
            else:
                if tool.is_held_by_plan or server.policy.rules.can_refuse:
                    output = await run_tool(server, call, tool, arguments, context)
                else:
                    output = await tool.run(arguments, context, is_valid=call.valid_for is tool)
                goes_on = output.continuation
                if goes_on is not None and await context.follow_as_task(goes_on):
                    output = await _follow(tool, goes_on.state, context)
        except UnansweredError as refusal:
            if not call.is_task:
                raise
            output = create_refusal(refusal)
        if server.shared_notices is not None:
            return await _finish(server, call, tool, output)
        return _format_result(server, call, tool, output)

    return work


async def _follow(tool: Tool, state: str, context: Context) -> Output:
    """Wait for the end of what a call left running."""
    if tool.follows is None:
        return _refusal(f"{tool.name} can't be followed here")
    limit = asyncio.timeout(LONGEST - MARGIN)
    try:
        async with limit:
            return await tool.follows(state, context)
    except ToolError as error:
        return create_refusal(error)
    except TimeoutError:
        if not limit.expired():
            raise
        return _refusal(f"it goes on, but a task lasts {LONGEST / 3600:g} hours at most")


async def _finish(server: Server, call: Call, tool: Tool, output: Output) -> dict[str, Any]:
    """Return the result like `_format_result`, with the news of all replicas."""
    call.output = output
    if server.shared_notices is not None and not call.is_task:
        principal = call.session.principal
        await server.shared_notices.fetch(principal, server.services.notices(principal))
    return _format_result(server, call, tool, output)


def _format_result(server: Server, call: Call, tool: Tool, output: Output) -> dict[str, Any]:
    """Return the result. A task's has no news: it may be read never, or more than once."""
    call.output = output
    if output.decision:
        call.decision = output.decision
    session, revision, shared = call.session, call.session.revision, server.shared_notices
    assert revision is not None  # a call comes after initialize
    is_plain = not call.is_task and output.wire is None  # another server's result is passed on as it is
    notices = server.services.notices(session.principal) if is_plain else None
    structured = serialization.choose_structured(output, tool, revision, full=server.full_structure)
    if notices is not None and notices.by_key:
        output, structured = _add_news(notices, call, tool, output, structured)
        if shared is not None:
            shared.give_back(session.principal, notices)
    return serialization.format_output(output, revision, structured)


def _add_news(notices: Notices, call: Call, tool: Tool, output: Output, structured: Any) -> tuple[Output, Any]:
    """Return the output and its structured content, both with the news for this caller.

    Some clients show their model only the text, others only the structured content. If the structured content has no
    room for the news, they wait for the next result. News is reported once, and again if the answer is not sent.
    """
    plain = None if structured is None else msgspec.to_builtins(structured)
    if plain is not None:
        has_room = tool.allows_news and isinstance(plain, dict) and isinstance(plain.get(NEWS, []), list)
        if not has_room:
            return output, structured
    session = call.session
    news = notices.take() if session.scopes is None else notices.take(lambda scope: session.allows(frozenset((scope,))))
    if not news:
        return output, structured
    if call.flight is not None:
        call.flight.on_unsent = lambda: notices.restore(news)
    texts = [notice.text for notice in news.values()]
    block = Text("\nMeanwhile:\n" + "\n".join(f"- {text}" for text in texts))  # some clients join blocks directly
    told = Output([*output.content, block], output.structured, output.is_error)
    return told, None if plain is None else {**plain, NEWS: [*plain.get(NEWS, ()), *texts]}


async def run_tool(server: Server, call: Call, tool: Tool, arguments: dict[str, Any], context: Context) -> Output:
    """Run a tool, unless a plan, a rule or the person refuses. Raises CannotAskError."""
    load = context.caller_state.load
    if load is not None:  # a rule may be about the folder
        await load()
    try:
        if tool.is_held_by_plan:
            context = await _hold_to_plan(call, tool, context)
        if server.policy.rules.can_refuse:
            context = await approval.require_approval(server, call, tool, arguments, context)
            if tool.is_held_by_plan:  # a plan may have begun while the person was asked
                context = await _hold_to_plan(call, tool, context)
            if tool.mount is not None:  # its server may list another form by now, or the person has switched it off
                _check_withheld(server, call, tool)
    except ToolError as refusal:
        return create_refusal(refusal)
    try:
        return await tool.run(arguments, context, is_valid=call.valid_for is tool)
    except (InputRequired, BaseExceptionGroup):  # a question, perhaps inside a task group
        if server.policy.rules.can_refuse:
            await approval.carry_approval(server, call, context)
        raise


def _check_withheld(server: Server, call: Call, tool: Tool) -> None:
    """Raise ToolError for a tool that another server lists, and that is not served to this client any more."""
    is_served = tool.name in server.registry_for(call.session).tools
    withheld = None if is_served else server.find_withheld(call.session, "tools", tool.name)
    if withheld is not None:
        call.decision = withheld.decision
        raise withheld.error


async def _hold_to_plan(call: Call, tool: Tool, context: Context) -> Context:
    """Return the context to run the tool with: one that changes nothing if a plan is active. Raises ToolError."""
    if call.is_read_only or not await context.plan.active():
        return context
    why = await _find_plan_obstacle(tool, context)
    if why is not None:
        call.decision = "plan"
        raise ToolError(f"{tool.name} is refused while a plan is active: finish planning with PlanMode exit first{why}")
    call.is_read_only = True
    return context.read_only()


async def _find_plan_obstacle(tool: Tool, context: Context) -> str | None:
    """Return None if the tool can run and change nothing, else a note for the refusal, or ""."""
    if tool.in_plan != "read-only":
        return ""
    why = await context.service(Workspace).find_read_only_obstacle()
    return None if why is None else f". It can't run read-only here: {why}"


def _read_call(server: Server, call: Call) -> tuple[Tool, dict[str, Any]]:
    name, arguments = call.params.get("name"), call.params.get("arguments")
    tools = _find_tools(server, call)
    tool = tools.get(name) if isinstance(name, str) else None
    if tool is None:
        near = closest(name, tools) if isinstance(name, str) else None
        hint = f"; did you mean {near}?" if near else ""
        raise InvalidParams(f"unknown tool: {format_name(name)}{hint}")
    if arguments is None:
        arguments = {}
    elif not isinstance(arguments, dict):
        raise InvalidParams("'arguments' must be an object")
    return tool, arguments


async def _find_excess(server: Server, call: Call, scope: str) -> str | None:
    """Return why this call is one too many of its principal, or None."""
    if server.policy.limiter is None:
        return None
    too_many = await server.policy.limiter.admit(call.session.principal, scope)
    if too_many is not None:
        call.decision = "limited"
    return too_many


def _find_withheld(server: Server, call: Call) -> "WithheldPart | None":
    """Return the tool of another server that is called and not served, or None for any other name."""
    name = call.params.get("name")
    is_served = isinstance(name, str) and name in _find_tools(server, call)
    return None if is_served else server.find_withheld(call.session, "tools", name)


async def _refuse_withheld(server: Server, call: Call, withheld: "WithheldPart") -> dict[str, Any]:
    """Return the result for a tool that is not served. It is limited and written down as that of one that is."""
    part = withheld.part
    call.mounted = withheld.mount, part.relay.original if part.relay is not None else part.key
    too_many = await _find_excess(server, call, part.scope)
    if too_many is None:
        call.decision = withheld.decision
    call.output = create_refusal(withheld.error) if too_many is None else _refusal(too_many)
    return serialization.format_output(call.output, call.revision, None)


def _find_tools(server: Server, call: Call) -> Mapping[str, Tool]:
    """Return the tools that this client is shown."""
    if call.shown is not None:
        return call.shown.tools
    return server.registry.tools if server.views is None else server.registry_for(call.session).tools


def _refusal(text: str) -> Output:
    return Output([Text(text)], is_error=True)

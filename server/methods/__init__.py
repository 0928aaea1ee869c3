"""Answer the MCP methods: one table, a function each, a file per capability.

Enter at `build_dispatcher`. `app` imports it; a feature costs one row and one function.
"""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from msgspec.structs import replace

from toolgate.server.base.asyncio_tasks import DeadlineTimer
from toolgate.server.base.merged_rows import merge_rows
from toolgate.server.methods import lifecycle, lists, prompts, resources, skills, subscriptions, tasks, tools
from toolgate.server.methods.scopes import ScopeRules, fixed_scopes
from toolgate.server.methods.server import MethodFunction, Server, with_named_part, with_prepared_views
from toolgate.server.protocol import serialization
from toolgate.server.protocol.dispatcher import Dispatcher, Method, ScopesOf
from toolgate.server.protocol.revisions import Revision
from toolgate.tools.api.registry import Registry
from toolgate.tools.api.scopes import READ, WORKFLOW
from toolgate.tools.api.tool import Tool
from toolgate.tools.builtin.skills.files import SkillEntries

HANDLERS = {"notifications/initialized": lifecycle.mark_ready, "notifications/cancelled": lifecycle.cancel_request}


def build_dispatcher(server: Server, added: Sequence[Mapping[str, Method]] = ()) -> Dispatcher:
    """Return the dispatcher of one server. `added`: the methods of features, by name."""
    published = SkillEntries()
    scopes = ScopeRules(server)
    nothing, read, workflow = fixed_scopes(), fixed_scopes(READ), fixed_scopes(WORKFLOW)
    run_tool = tools.with_prepared_arguments(server, server.observers.wrap(partial(tools.call_tool, server)))
    get_prompt, read_resource = partial(prompts.get_prompt, server), partial(resources.read_resource, server)
    named = partial(with_named_part, server)
    complete = partial(prompts.complete, server, DeadlineTimer(min(prompts.COMPLETION_TIME, server.call_timeout)))

    def format_tool(tool: Tool, revision: Revision) -> dict[str, Any]:
        schemes = server.security_schemes(tool.scope) if server.security_schemes is not None else None
        return serialization.format_tool(tool, revision, schemes, full=server.full_structure)

    def list_parts(field: str, parts: lists.Parts, format_part: lists.Formatter) -> Method:
        return Method(with_prepared_views(server, partial(lists.list_parts, server, field, parts, format_part)), read)

    def describe_skills(answer: MethodFunction, needed: ScopesOf) -> Method:
        return Method(with_prepared_views(server, answer), needed, with_session=False)

    def visible_tools(registry: Registry) -> Mapping[str, Tool]:
        return server.policy.rules.without_denied(registry.listed_tools)

    methods = {
        "initialize": Method(partial(lifecycle.initialize, server), nothing, stateless=False, before_initialize=True),
        "ping": Method(lifecycle.ping, nothing, stateless=False, before_initialize=True),
        "server/discover": Method(partial(lifecycle.discover, server), nothing, with_session=False),
        "tools/list": list_parts("tools", visible_tools, format_tool),
        "tools/call": Method(
            named("name", lambda registry, name: registry.tools.get(name), run_tool), scopes.tool, "name"
        ),
        "prompts/list": list_parts("prompts", lambda registry: registry.prompts, serialization.format_prompt),
        "prompts/get": Method(
            named("name", lambda registry, name: registry.prompts.get(name), get_prompt), scopes.prompt, "name"
        ),
        "resources/list": Method(with_prepared_views(server, partial(lists.list_resources, server)), read),
        "resources/templates/list": list_parts(
            "resourceTemplates", lambda registry: registry.listed_templates, serialization.format_template
        ),
        "resources/read": Method(
            named("uri", lambda registry, uri: registry.resource(uri), read_resource), scopes.resource, "uri"
        ),
        "resources/subscribe": Method(partial(resources.subscribe, server), scopes.resource, stateless=False),
        "resources/unsubscribe": Method(partial(resources.unsubscribe, server), scopes.resource, stateless=False),
        "completion/complete": Method(with_prepared_views(server, complete), scopes.completion),
        "logging/setLevel": Method(lifecycle.set_log_level, nothing, stateless=False),
        "tasks/get": Method(partial(tasks.get_task, server), scopes.task, "taskId", with_session=False),
        "tasks/update": Method(partial(tasks.update_task, server), scopes.task, "taskId", with_session=False),
        "tasks/cancel": Method(partial(tasks.cancel_task, server), scopes.task, "taskId", with_session=False),
        "subscriptions/listen": Method(
            partial(subscriptions.listen, server), scopes.subscription, is_stream=True, with_session=False
        ),
        "skills/list": describe_skills(partial(skills.list_skills, server, published), workflow),
        "skills/get": describe_skills(partial(skills.get_skill, server, published), workflow),
        "resources/directory/read": describe_skills(partial(skills.read_directory, server), scopes.resource),
    }
    methods = _trace(server, merge_rows("methods", methods.items(), *(table.items() for table in added)))
    server.call_tasks.rerun = partial(tools.rerun_call, server)
    return Dispatcher(methods, HANDLERS, partial(serialization.finish_answer, identity=server.identity))


def _trace(server: Server, methods: dict[str, Method]) -> dict[str, Method]:
    """Return the methods with a span for each call, if there are traces."""
    if server.trace is None:
        return methods
    return {name: replace(row, function=server.trace(row.function)) for name, row in methods.items()}

"""The MCP methods: one table, a function each, a file per capability. A feature costs one row and one function."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from toolgate.server.methods import (
    completion,
    lifecycle,
    lists,
    logging,
    prompts,
    resources,
    skills,
    subscriptions,
    tasks,
    tools,
)
from toolgate.server.methods.scopes import ScopeRules, fixed_scopes
from toolgate.server.protocol import serialization
from toolgate.server.protocol.dispatcher import Dispatcher, Method
from toolgate.server.protocol.revisions import Revision
from toolgate.server.protocol.session import Call
from toolgate.server.server import Server
from toolgate.tools.api.registry import Registry
from toolgate.tools.api.scopes import READ, WORKFLOW
from toolgate.tools.api.tool import Tool
from toolgate.tools.builtin.skills.files import SkillEntries


def _tool_formatter(server: Server) -> lists.Formatter:
    def spell(tool: Tool, revision: Revision) -> dict[str, Any]:
        schemes = server.security_schemes(tool.scope) if server.security_schemes is not None else None
        return serialization.format_tool(tool, revision, schemes, full=server.full_structure)

    return spell


def _visible_tools(server: Server) -> lists.Parts:
    def tools(held: Registry) -> Mapping[str, Tool]:
        return server.policy.rules.without_denied(held.tools)

    return tools


def build_dispatcher(server: Server) -> Dispatcher:
    """The dispatcher of one server."""
    published = SkillEntries()
    scopes = ScopeRules(lambda: server.registry)
    nothing, read, workflow = fixed_scopes(), fixed_scopes(READ), fixed_scopes(WORKFLOW)
    methods = {
        "initialize": Method(lifecycle.initialize(server), nothing, stateless=False, before_initialize=True),
        "ping": Method(lifecycle.ping, nothing, stateless=False, before_initialize=True),
        "server/discover": Method(lifecycle.discover(server), nothing, with_session=False),
        "tools/list": Method(lists.list_parts(server, "tools", _visible_tools(server), _tool_formatter(server)), read),
        "tools/call": Method(tools.call_tool(server), scopes.tool, "name"),
        "prompts/list": Method(
            lists.list_parts(server, "prompts", lambda held: held.prompts, serialization.format_prompt), read
        ),
        "prompts/get": Method(prompts.get_prompt(server), scopes.prompt, "name"),
        "resources/list": Method(lists.list_resources(server), read),
        "resources/templates/list": Method(
            lists.list_parts(server, "resourceTemplates", lambda held: held.templates, serialization.format_template),
            read,
        ),
        "resources/read": Method(resources.read_resource(server), scopes.resource, "uri"),
        "resources/subscribe": Method(resources.subscribe(server), scopes.resource, stateless=False),
        "resources/unsubscribe": Method(resources.unsubscribe(server), scopes.resource, stateless=False),
        "completion/complete": Method(completion.complete(server), scopes.completion),
        "logging/setLevel": Method(logging.set_level, nothing, stateless=False),
        "tasks/get": Method(tasks.get_task(server), scopes.task, "taskId", with_session=False),
        "tasks/update": Method(tasks.update_task(server), scopes.task, "taskId", with_session=False),
        "tasks/cancel": Method(tasks.cancel_task(server), scopes.task, "taskId", with_session=False),
        "subscriptions/listen": Method(subscriptions.listen(server), scopes.subscription, with_session=False),
        "skills/list": Method(skills.list_skills(server, published), workflow, with_session=False),
        "skills/get": Method(skills.get_skill(server, published), workflow, with_session=False),
        "resources/directory/read": Method(skills.read_directory(server), scopes.resource, with_session=False),
    }
    if server.trace is not None:
        methods = {name: replace(row, function=server.trace(row.function)) for name, row in methods.items()}
    server.call_tasks.rerun = tools.rerun_call(server)
    notifications = {
        "notifications/initialized": lifecycle.mark_ready(server),
        "notifications/cancelled": lifecycle.cancel_request,
    }

    def finish_answer(answer: Any, call: Call) -> Any:
        """An answer as its revision wants it; one that was encoded before is finished already."""
        revision = call.session.revision  # none yet where a ping came before initialize
        if revision is None or not revision.result_types or not isinstance(answer, dict):
            return answer
        return serialization.add_result_type(answer, server.identity(revision))

    return Dispatcher(methods, notifications, finish_answer)

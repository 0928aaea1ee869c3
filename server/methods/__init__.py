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
from toolgate.server.protocol import serialization
from toolgate.server.protocol.dispatcher import Dispatcher, Method
from toolgate.server.protocol.revisions import Revision
from toolgate.server.protocol.session import Call
from toolgate.server.server import Server
from toolgate.tools.api.registry import Registry
from toolgate.tools.api.tool import Tool
from toolgate.tools.builtin.skills.files import Published


def _spelled_tool(server: Server) -> lists.Spell:
    def spell(tool: Tool, revision: Revision) -> dict[str, Any]:
        schemes = server.schemes(tool.scope) if server.schemes is not None else None
        return serialization.tool(tool, revision, schemes, full=server.full_structure)

    return spell


def _offered(server: Server) -> lists.Parts:
    def tools(held: Registry) -> Mapping[str, Tool]:
        return server.rules.offered(held.tools)

    return tools


def dispatcher(server: Server) -> Dispatcher:
    """The dispatcher of one server."""
    published = Published()
    methods = {
        "initialize": Method(lifecycle.initialize(server), stateless=False, opens=True),
        "ping": Method(lifecycle.ping, stateless=False, opens=True),
        "server/discover": Method(lifecycle.discover(server), with_session=False),
        "tools/list": Method(lists.of_parts(server, "tools", _offered(server), _spelled_tool(server))),
        "tools/call": Method(tools.call_tool(server)),
        "prompts/list": Method(lists.of_parts(server, "prompts", lambda held: held.prompts, serialization.prompt)),
        "prompts/get": Method(prompts.get_prompt(server)),
        "resources/list": Method(lists.of_resources(server)),
        "resources/templates/list": Method(
            lists.of_parts(server, "resourceTemplates", lambda held: held.templates, serialization.template)
        ),
        "resources/read": Method(resources.read_resource(server)),
        "resources/subscribe": Method(resources.subscribe(server), stateless=False),
        "resources/unsubscribe": Method(resources.unsubscribe(server), stateless=False),
        "completion/complete": Method(completion.complete(server)),
        "logging/setLevel": Method(logging.set_level, stateless=False),
        "tasks/get": Method(tasks.get_task(server), with_session=False),
        "tasks/update": Method(tasks.update_task(server), with_session=False),
        "tasks/cancel": Method(tasks.cancel_task(server), with_session=False),
        "subscriptions/listen": Method(subscriptions.listen(server), with_session=False),
        "skills/list": Method(skills.list_skills(server, published), with_session=False),
        "skills/get": Method(skills.get_skill(server, published), with_session=False),
        "resources/directory/read": Method(skills.read_directory(server), with_session=False),
    }
    if server.followed is not None:
        methods = {name: replace(row, function=server.followed(row.function)) for name, row in methods.items()}
    server.deferrals.again = tools.call_again(server)
    notifications = {
        "notifications/initialized": lifecycle.initialized(server),
        "notifications/cancelled": lifecycle.cancelled,
    }

    def finished(answer: Any, call: Call) -> Any:
        """An answer as its revision wants it; one that was encoded before is finished already."""
        revision = call.session.revision  # none yet where a ping came before initialize
        if revision is None or not revision.result_types or not isinstance(answer, dict):
            return answer
        return serialization.finish(answer, server.identity(revision))

    return Dispatcher(methods, notifications, finished)

"""The MCP methods: one table, a function each, a file per capability. What a feature costs is one row and one function."""

from toolgate.server.dispatcher import Dispatcher, Method
from toolgate.server.methods import lifecycle, logging, subscriptions, tools
from toolgate.server.server import Server
from toolgate.server.shape import finish


def dispatcher(server: Server) -> Dispatcher:
    """The dispatcher of one server."""
    methods = {
        "initialize": Method(lifecycle.initialize(server), stateless=False, opens=True),
        "ping": Method(lifecycle.ping, stateless=False, opens=True),
        "server/discover": Method(lifecycle.discover(server), with_session=False),
        "tools/list": Method(tools.list_tools(server)),
        "tools/call": Method(tools.call_tool(server)),
        "logging/setLevel": Method(logging.set_level, stateless=False),
        "subscriptions/listen": Method(subscriptions.listen(server), with_session=False),
    }
    notifications = {
        "notifications/initialized": lifecycle.initialized(server),
        "notifications/cancelled": lifecycle.cancelled,
    }
    return Dispatcher(
        methods,
        notifications,
        lambda answer, call: (
            finish(answer, call.revision, server.identity(call.revision)) if type(answer) is dict else answer
        ),
    )

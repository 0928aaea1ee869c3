"""List the methods of events, with the scopes that requests need. The answers are imported with the first request."""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from toolgate.server.features.events.service import EventService
from toolgate.server.methods.scopes import fixed_scopes, scopes_of
from toolgate.server.methods.server import Server
from toolgate.server.protocol.dispatcher import Method
from toolgate.server.protocol.session import Call
from toolgate.tools.api.scopes import READ, WORKFLOW

Params = Mapping[str, Any]


def list_methods(find_service: Callable[[], EventService], server: Server) -> dict[str, Method]:
    """Return the rows of the methods. `find_service()` returns the events of the server."""
    read, answer = fixed_scopes(READ), partial(_answer, find_service, server)

    def of_type(params: Params, principal: str) -> frozenset[str]:
        return scopes_of(server.registry_of(principal).events, params.get("name"))

    def of_test(params: Params, principal: str) -> frozenset[str]:
        """A test event has texts that reach the person's other clients."""
        return of_type(params, principal) | {WORKFLOW}

    return {
        "events/list": Method(answer, read),
        "events/poll": Method(answer, of_type),
        "events/subscribe": Method(answer, of_type),
        "events/unsubscribe": Method(answer, read),
        "events/stream": Method(answer, of_type, is_stream=True),
        "toolgate/events/test": Method(answer, of_test),
    }


async def _answer(find_service: Callable[[], EventService], server: Server, call: Call) -> dict[str, Any]:
    from toolgate.server.features.events import methods  # start-up: few clients ask for events

    return await methods.ANSWERS[call.method](find_service(), server, call)

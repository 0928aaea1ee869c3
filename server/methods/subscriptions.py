"""subscriptions/listen: a request that stays open and brings what the client asked to be told (2026-07-28).

Knows nothing of who causes the news: the server announces, this only opens, acknowledges and closes.
"""

import asyncio
import functools
from collections.abc import Awaitable, Callable
from typing import Any

from toolgate.server.envelope import SUBSCRIPTION
from toolgate.server.errors import InvalidParams, InvalidRequest
from toolgate.server.messages import Notification
from toolgate.server.server import TOOLS, Listener, Server
from toolgate.server.session import Call

KINDS = {"toolsListChanged": TOOLS}  # the filter's field → the kind of list; what is not here is not served
MAX_LISTENERS = 1_000  # of one server; each costs a task


def listen(server: Server) -> Callable[[Call], Awaitable[dict[str, Any]]]:
    async def answer(call: Call) -> dict[str, Any]:
        """Acknowledge, then tell until the client cancels or the server ends; the result says that it ended well."""
        if len(server.listeners) >= MAX_LISTENERS:
            raise InvalidRequest(f"more than {MAX_LISTENERS} open subscriptions")
        ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        listener = Listener(call.id, call.channel, _acknowledged(call), ended)
        server.listeners.add(listener)
        call.params.clear()  # a subscription may stay open for days, and there may be a thousand
        try:
            await ended
        finally:
            server.listeners.discard(listener)
        return {"_meta": {SUBSCRIPTION: call.id}}

    return answer


def _acknowledged(call: Call) -> frozenset[str]:
    """The kinds of list asked for that are served, after the client has been told which."""
    wanted = call.params.get("notifications")
    if not isinstance(wanted, dict):
        raise InvalidParams("'notifications' must be an object")
    honoured = {name: True for name in KINDS if wanted.get(name) is True}
    params = {"_meta": {SUBSCRIPTION: call.id}, "notifications": honoured}
    call.channel.send(Notification("notifications/subscriptions/acknowledged", params))
    return _kinds(tuple(honoured))


@functools.cache
def _kinds(names: tuple[str, ...]) -> frozenset[str]:
    """One set for all who want the same."""
    return frozenset(KINDS[name] for name in names)

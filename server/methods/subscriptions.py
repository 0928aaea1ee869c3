"""Answer subscriptions/listen, a request that stays open and carries notifications."""

import asyncio
import functools
from collections import Counter
from types import NoneType
from typing import Any

from toolgate.server.base.principals.principal import LOCAL
from toolgate.server.base.task import StoredTask
from toolgate.server.methods import resources
from toolgate.server.methods.server import Server
from toolgate.server.methods.tasks import find_notified, require_extension
from toolgate.server.protocol import serialization
from toolgate.server.protocol.errors import InvalidParams, InvalidRequest
from toolgate.server.protocol.notifications import OpenSubscription
from toolgate.server.protocol.request_meta import SUBSCRIPTION
from toolgate.server.protocol.resource_updates import MAX_SUBSCRIPTIONS, MAX_URIS, yield_in_turns
from toolgate.server.protocol.session import Call
from toolgate.tools.api.text.uris import parse_scheme

CHANGED = "ListChanged"  # in the filter, after a kind of list
MAX_LISTENERS = 1_000  # per server; each costs a task
MAX_OWNED = 100  # per owner, if there are others
MAX_PERSONAL = 200  # per person through all clients: a person can register more clients


async def listen(server: Server, call: Call) -> dict[str, Any]:
    """Acknowledge, then notify until the client cancels or the server ends; the result marks an orderly end. What can
    notify of nothing ends at once."""
    principal, owner = call.session.principal, call.session.owner
    kinds, asked = _read_filter(server, call)
    await server.policy.require_rate(call)
    served = await _find_served(server, call, asked)
    tasks = await _find_tasks(server, call)
    if kinds or served or tasks:
        _make_room(server, principal, owner)
    ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    ids = frozenset(tasks)
    listener = OpenSubscription(call.id, call.channel, principal, owner, _kinds(kinds), ids, ended)
    listener.uris = frozenset(uri for uri in served if server.updates.subscribe(listener, principal, uri))
    accepted = _format_accepted(kinds, listener.uris, ids)
    listener.send("notifications/subscriptions/acknowledged", notifications=accepted)
    if accepted:
        await _notify(server, call, listener, tasks)
    return {"_meta": {SUBSCRIPTION: listener.id}}


async def _notify(server: Server, call: Call, listener: OpenSubscription, tasks: dict[str, StoredTask]) -> None:
    """Notify of changes until the subscription's end."""
    until = call.session.until
    server.notifications.subscriptions[listener] = None
    for kept in tasks.values():  # what changed before the subscription began
        listener.send("notifications/tasks", **serialization.format_detailed_task(kept))
    call.params.clear()  # frees memory: a thousand subscriptions may stay open for days
    timer = None if until is None else asyncio.get_running_loop().call_later(until - server.now(), listener.end)
    if server.notifications.is_ending:
        listener.end()
    try:
        await listener.end_signal
    finally:
        if timer is not None:
            timer.cancel()
        del server.notifications.subscriptions[listener]
        for uri in listener.uris:
            server.updates.unsubscribe(listener, listener.principal, uri)


def _make_room(server: Server, principal: str, owner: str) -> None:
    """Make room for one more subscription, if need be by ending one of the largest owner. Raises InvalidRequest."""
    held = [listener for listener in server.notifications.subscriptions if not listener.end_signal.done()]
    each = Counter(listener.principal for listener in held)
    is_shared = owner != LOCAL.owner  # otherwise all callers are the same
    owned = sum(listener.owner == owner for listener in held)
    has_room = not is_shared or (each[principal] < MAX_PERSONAL and owned < MAX_OWNED)
    if has_room and len(held) >= MAX_LISTENERS:
        largest, most = each.most_common(1)[0]
        has_room = most > each[principal] + 1
        if has_room:
            next(listener for listener in held if listener.principal == largest).end()
    if not has_room:
        raise InvalidRequest("too many open subscriptions")


def _read_filter(server: Server, call: Call) -> tuple[tuple[str, ...], list[str]]:
    """Return the filter's list kinds and the URIs of resources."""
    fields = [kind + CHANGED for kind in server.list_kinds()]
    wanted = call.params.get("notifications")
    if not isinstance(wanted, dict):
        raise InvalidParams("'notifications' must be an object")
    uris = wanted.get("resourceSubscriptions", [])
    if not isinstance(uris, list) or not all(isinstance(uri, str) for uri in uris):
        raise InvalidParams("'resourceSubscriptions' must be a list of URIs")
    if len(uris) > MAX_SUBSCRIPTIONS:
        raise InvalidRequest(f"more than {MAX_SUBSCRIPTIONS} subscriptions")
    if sum(map(len, uris)) > MAX_URIS:
        raise InvalidRequest(f"more than {MAX_URIS} characters in the URIs of 'resourceSubscriptions'")
    for name in fields:
        if not isinstance(wanted.get(name, False), (bool, NoneType)):
            raise InvalidParams(f"{name!r} must be true or false")
    return tuple(name for name in fields if wanted.get(name)), uris


async def _find_served(server: Server, call: Call, asked: list[str]) -> list[str]:
    """Return the URIs that are served to the caller."""
    hidden = await resources.hidden_schemes(server, call.session)
    principal = call.session.principal
    seen = [uri for uri in dict.fromkeys(asked) if parse_scheme(uri) not in hidden]
    return [uri async for uri in yield_in_turns(seen, len) if server.find_watchable(principal, uri) is not None]


async def _find_tasks(server: Server, call: Call) -> dict[str, StoredTask]:
    """Return the caller's tasks that run in this process: their changes are notified."""
    wanted: dict[str, Any] = call.params["notifications"]
    if "taskIds" not in wanted:
        return {}
    require_extension(call)
    ids = wanted["taskIds"]
    if not isinstance(ids, list) or not all(isinstance(id, str) for id in ids):
        raise InvalidParams("'taskIds' must be a list of ids")
    if len(ids) > MAX_SUBSCRIPTIONS:
        raise InvalidRequest(f"more than {MAX_SUBSCRIPTIONS} tasks")
    return await find_notified(server, call.session.principal, ids)


def _format_accepted(kinds: tuple[str, ...], uris: frozenset[str], tasks: frozenset[str]) -> dict[str, Any]:
    honoured: dict[str, Any] = dict.fromkeys(kinds, True)
    if uris:
        honoured["resourceSubscriptions"] = sorted(uris)
    if tasks:
        honoured["taskIds"] = sorted(tasks)
    return honoured


@functools.cache
def _kinds(names: tuple[str, ...]) -> frozenset[str]:
    """Return one shared set for equal filters."""
    return frozenset(name.removesuffix(CHANGED) for name in names)

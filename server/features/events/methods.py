"""Answer the methods of MCP Events: list the types, poll, stream, subscribe, and send a test.

Source: SEP-3415 (extension io.modelcontextprotocol/events).
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from functools import wraps
from typing import TYPE_CHECKING, Any

import msgspec

from toolgate.server.base.errors import StateError
from toolgate.server.base.principals.principal import LOCAL
from toolgate.server.features.events.log.errors import EXTENSION, EventError
from toolgate.server.features.events.log.format import format_event
from toolgate.server.features.events.log.rows import EventFilter, Position
from toolgate.server.features.events.params import (
    FilterParams,
    PollParams,
    SubscribeParams,
    UnsubscribeParams,
    encode_canonical,
    find_type,
    make_filter,
    not_before,
    read_params,
    served_types,
)
from toolgate.server.features.events.service import EventService
from toolgate.server.methods.lists import page_end, page_start
from toolgate.server.methods.server import Server
from toolgate.server.protocol import serialization
from toolgate.server.protocol.errors import MAX_SHOWN, InternalError, format_name
from toolgate.server.protocol.session import Call
from toolgate.tools.api.event import EventType

if TYPE_CHECKING:
    # start-up: most servers have no webhooks
    from toolgate.server.features.events.delivery.subscriptions import EventSubscriptions

DELIVERY = ["poll", "push"]
WEBHOOK = "webhook"
MOST = 500  # events in one answer
USUAL = 100
NEXT_POLL = 5_000  # ms: a client that wants to know sooner opens a stream

EventsResult = dict[str, Any]
AnswerCall = Callable[[EventService, Server, Call], Awaitable[EventsResult]]


def answers(function: AnswerCall) -> AnswerCall:
    """Turn the errors of events into those that the client knows."""

    @wraps(function)
    async def answer(service: EventService, server: Server, call: Call) -> EventsResult:
        try:
            return await function(service, server, call)
        except EventError as error:
            raise error.to_rpc(is_declared=EXTENSION in call.session.extensions) from None
        except StateError as error:
            raise InternalError(str(error)) from None

    return answer


async def list_types(service: EventService, server: Server, call: Call) -> EventsResult:
    """Return the types of events, by name."""
    served = served_types(server.registry, _served_tools(server))
    names = sorted(served)
    begin = page_start(call.params.get("cursor"), "events", names)
    end, following = page_end(begin, "events", names)
    listed = [serialization.format_event_type(served[name], call.revision) for name in names[begin:end]]
    has_webhook = service.subscriptions is not None and call.session.principal != LOCAL.name
    delivery = [*DELIVERY, WEBHOOK] if has_webhook else DELIVERY
    page: EventsResult = {"events": [{**spelled, "delivery": delivery} for spelled in listed]}
    if following is not None:
        page["nextCursor"] = following
    return serialization.add_cache_hints(page, call.revision, serialization.CACHE_FOR)


@answers
async def poll(service: EventService, server: Server, call: Call) -> EventsResult:
    """Return the events since the cursor, or a first cursor."""
    await server.policy.require_rate(call)
    params = read_params(call.params, PollParams)
    wanted, after = _read_filter(service, server, call, params)
    await service.watchers.require(wanted)
    most = min(params.max_events or USUAL, MOST)
    page = await service.log.read_page(wanted, after, most, not_before(params, service.now()))
    return {
        "events": [format_event(found) for found in page.events],
        "cursor": service.cursors.format_cursor(wanted.principal, page.position),
        "truncated": page.is_truncated,
        "hasMore": page.has_more,
        "nextPollMs": NEXT_POLL,
    }


@answers
async def stream(service: EventService, server: Server, call: Call) -> EventsResult:
    """Send events until the client cancels or the server ends; the result marks an orderly end."""
    await server.policy.require_rate(call)
    params = read_params(call.params, PollParams)
    wanted, after = _read_filter(service, server, call, params)
    session = call.session
    await service.watchers.require(wanted)
    opened = service.streams.open(
        call.id,
        call.channel,
        wanted,
        session.right,
        is_shared=session.owner != LOCAL.owner,
        is_declared=EXTENSION in session.extensions,
    )
    call.params.clear()  # frees memory: a thousand streams may stay open for days
    timer = None
    if session.until is not None:
        timer = asyncio.get_running_loop().call_later(session.until - service.now(), opened.end)
    try:
        return await opened.run(after, not_before(params, service.now()))
    finally:
        if timer is not None:
            timer.cancel()
        service.streams.close(opened)


@answers
async def subscribe(service: EventService, server: Server, call: Call) -> EventsResult:
    """Subscribe by webhook, or refresh a subscription; the result comes after the endpoint is verified."""
    await server.policy.require_rate(call)
    params = read_params(call.params, SubscribeParams)
    subscriptions = _require_webhooks(service, call, params)
    wanted, after = _read_filter(service, server, call, params)
    session, endpoint = call.session, params.delivery
    request = subscriptions.make_request(
        wanted,
        owner=session.owner,
        right=session.right,
        url=endpoint.url,
        secret=endpoint.secret or "",
        after=after,
        not_before=not_before(params, service.now()),
        ttl=params.ttl,
        until=session.until,
    )
    await service.watchers.require(wanted)
    return await subscriptions.subscribe(request)


@answers
async def unsubscribe(service: EventService, server: Server, call: Call) -> EventsResult:
    """End a subscription. Clients that do not know the extension by its name expect success for an unknown one, too."""
    await server.policy.require_rate(call)
    params = read_params(call.params, UnsubscribeParams)
    subscriptions = _require_webhooks(service, call, params)
    arguments = {name: value for name, value in (params.arguments or {}).items() if value is not None}
    wanted = EventFilter(call.session.principal, params.name, encode_canonical(arguments).decode())
    found = await subscriptions.unsubscribe(wanted, call.session.owner, params.delivery.url)
    if not found and EXTENSION in call.session.extensions:
        raise EventError("NotFound", "there is no such subscription", kind="subscription")
    return {}


@answers
async def send_test(service: EventService, server: Server, call: Call) -> EventsResult:
    """Send a test event to those of the caller's principal who wait for such an event, and return its ids.

    No extension has this method: `toolgate events test` uses it.
    """
    await server.policy.require_rate(call)
    params = read_params(call.params, FilterParams)
    wanted = _find_type(server, params)
    principal, arguments = call.session.principal, None
    if params.arguments:
        arguments = msgspec.json.decode(make_filter(principal, wanted, params.arguments).arguments)
    return {"eventIds": await service.log.send_tests(principal, wanted, arguments)}


def _require_webhooks(service: EventService, call: Call, params: UnsubscribeParams) -> "EventSubscriptions":
    """Return the subscriptions. Raises EventError where there are none, for this caller or at all."""
    mode, subscriptions = params.delivery.mode, service.subscriptions
    if mode != WEBHOOK or subscriptions is None:
        message = f"no events are delivered by {format_name(mode)} here"
        raise EventError("Unsupported", message, feature="deliveryMode", value=mode[:MAX_SHOWN])
    if call.session.principal == LOCAL.name:
        raise EventError("Forbidden", "a subscription by webhook needs a caller who has signed in: poll or stream")
    return subscriptions


def _read_filter(
    service: EventService, server: Server, call: Call, params: PollParams | SubscribeParams
) -> tuple[EventFilter, Position | None]:
    """Return what the caller waits for, and from where. Raises EventError and InvalidParams."""
    principal = call.session.principal
    wanted = make_filter(principal, _find_type(server, params), params.arguments)
    return wanted, None if params.cursor is None else service.cursors.parse_cursor(principal, params.cursor)


def _find_type(server: Server, params: FilterParams) -> EventType:
    return find_type(server.registry, _served_tools(server), params.name)


def _served_tools(server: Server) -> frozenset[str]:
    return frozenset(server.policy.rules.without_denied(server.registry.tools))


ANSWERS: Mapping[str, AnswerCall] = {
    "events/list": list_types,
    "events/poll": poll,
    "events/subscribe": subscribe,
    "events/unsubscribe": unsubscribe,
    "events/stream": stream,
    "toolgate/events/test": send_test,
}

"""Show a person what their clients wait for, end it, and send it a test event, for the first page.

Every id is looked up among the principal's own.
"""

import hashlib
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal
from urllib.parse import urlsplit

import msgspec

from toolgate.server.base.reports.page_part import ALREADY_ENDED, ActionResult, PartRows
from toolgate.server.features.events.delivery.outbox import parse_right
from toolgate.server.features.events.delivery.subscription_rows import (
    StoredSubscription,
    SubscriptionRows,
    SubscriptionState,
)
from toolgate.server.features.events.log.errors import EventError
from toolgate.server.features.events.log.rows import EventFilter
from toolgate.server.features.events.service import EventService
from toolgate.server.features.events.webhooks.delivery import Disposition
from toolgate.server.protocol.messages import encode_value
from toolgate.tools.api.event import EventType

if TYPE_CHECKING:
    from toolgate.server.base.principals.principal import GrantKey
    from toolgate.server.state.store import Connection

MOST = 20  # subscriptions, streams and polls shown, failing ones first
TEMPLATE = Path(__file__).with_name("pages") / "subscriptions.html"
SUBSCRIPTION_ENDED = "The subscription was ended. The app can subscribe again until you revoke its access."
ENDED = "the person has ended this on the server's page"
FAILURES = {  # the word of an attempt → what has happened, for people
    "connection_refused": "the connection failed",
    "timeout": "no answer in time",
    "tls_error": "no secure connection",
    "http_4xx": "it refused the delivery",
    "http_5xx": "it answered with an error",
}


class NotDeliveredError(Exception):
    """A test event was not delivered; the text says why. `is_final`: it is not tried again."""

    def __init__(self, reason: str, *, is_final: bool = False) -> None:
        super().__init__(reason)
        self.is_final = is_final


class ShownSubscription(msgspec.Struct, frozen=True):
    """What a client waits for. Times are in seconds since the epoch; those of deliveries are for webhooks alone.

    - `arguments`: `name=value` words. `right`: what its access depends on, where that is known.
    - `host`: of the webhook, without the rest of its URL. `streams`: how many are open on this server.
    - `until`: when it ends unless its client comes back. `failure`: why the last attempt failed, or "".
    """

    id: str
    type: str
    arguments: str
    delivery: Literal["webhook", "stream", "poll"]
    until: float
    right: "GrantKey | None" = None
    host: str = ""
    streams: int = 0
    delivered: int = 0
    delivered_at: float | None = None
    waiting: int = 0
    failing_since: float | None = None
    failure: str = ""
    retry_at: float | None = None


class SubscriptionsPart:
    """The subscriptions, streams and polls of one server. `find_types()` returns the types served now, by name."""

    name = "subscriptions"
    title = "Event subscriptions"
    template = TEMPLATE

    def __init__(self, service: EventService, find_types: Callable[[], Mapping[str, EventType]]) -> None:
        self._service = service
        self._rows = SubscriptionRows(service.log.rows)
        self._find_types = find_types
        self.actions = {"unsubscribe": self._unsubscribe, "test": self._test}

    async def read(self, principal: str) -> PartRows:
        """Return the rows of a principal. Raises StateError."""
        found = await self.list_subscriptions(principal)
        rights = [each.right for each in found if each.right]
        return PartRows(
            found[:MOST],
            max(0, len(found) - MOST),
            clients=frozenset(right[1] for right in rights if not isinstance(right, str)),
            grants=frozenset(right for right in rights if isinstance(right, str)),
        )

    async def list_subscriptions(self, principal: str) -> list[ShownSubscription]:
        """Return what a principal's clients wait for: what fails first, then webhooks, then streams and polls. Costs a
        stat for a principal without any. Raises StateError."""
        log = self._service.log
        if not log.has_interest(principal):
            return []
        states, interests = await log.store.read(
            lambda connection: (
                self._rows.list_states(connection, principal),
                log.rows.list_own_interests(connection, principal),
            )
        )
        streams = self._service.streams.count_each(principal)
        webhooks = sorted(states, key=lambda state: (state.held.failing_since is None, -state.held.made_at))
        by_webhook = {(state.held.type, state.held.arguments) for state in states}  # subscribing looks like a poll
        readers = [
            _to_shown_reader(each.wanted, streams[each.wanted], each.until)
            for each in interests
            if streams[each.wanted] or (each.wanted.type, each.wanted.arguments) not in by_webhook
        ]
        return [*map(_to_shown_webhook, webhooks), *sorted(readers, key=lambda reader: not reader.streams)]

    def watch(self, principal: str, notify: Callable[[], None]) -> Callable[[], None]:
        """Call `notify` when a subscription or a stream of the principal begins or ends here, and when an attempt to
        deliver ends. Return a function that stops this."""

        def note(changed: str) -> None:
            if changed == principal:
                notify()

        self._service.log.on_change.append(note)
        return lambda: self._service.log.on_change.remove(note)

    async def end(self, principal: str, id: str) -> bool:
        """End a subscription, or streams and polls, and tell the client. Return whether there was one. Raises
        StateError."""
        log, streams = self._service.log, self._service.streams
        held, wanted = await self._find(principal, id)
        error = EventError("Forbidden", ENDED)
        if held is not None and self._service.subscriptions is not None:
            await self._service.subscriptions.terminate([held.id], error)
            wanted = EventFilter(principal, held.type, held.arguments)
            if not streams.count_each(principal)[wanted]:
                await log.store.transact(partial(self._drop_unless_subscribed, wanted), alone="events")
            return True
        if wanted is None:
            return False
        streams.terminate_filter(wanted, error)
        return await log.store.transact(lambda connection: log.rows.drop_interest(connection, wanted), alone="events")

    async def send_test(self, principal: str, id: str) -> Literal[True] | None:
        """Send a test event to a subscription, or to streams and polls, alone. Return True if a webhook acknowledged
        it, None if that is not known.

        Raises KeyError if it has ended, NotDeliveredError, and StateError.
        """
        held, wanted = await self._find(principal, id)
        name = held.type if held is not None else wanted.type if wanted is not None else ""
        type = self._find_types().get(name)
        if type is None:
            raise KeyError(id)
        try:
            if wanted is not None:
                await self._service.log.send_tests(principal, type, msgspec.json.decode(wanted.arguments), ())
                return None
            assert held is not None and self._service.subscriptions is not None
            outcome = await self._service.subscriptions.send_test(held, type)
        except EventError as error:
            raise NotDeliveredError(str(error), is_final=True) from None
        if outcome is not None and outcome.error is not None:
            raise NotDeliveredError(FAILURES[outcome.error], is_final=outcome.disposition is Disposition.FINAL)
        return None if outcome is None else True

    async def _unsubscribe(self, principal: str, id: str, _fields: Mapping[str, str]) -> ActionResult:
        return ActionResult(SUBSCRIPTION_ENDED) if await self.end(principal, id) else ActionResult(ALREADY_ENDED, 404)

    async def _test(self, principal: str, id: str, _fields: Mapping[str, str]) -> ActionResult:
        try:
            is_delivered = await self.send_test(principal, id)
        except KeyError:
            return ActionResult(ALREADY_ENDED, 404)
        except NotDeliveredError as error:
            after = "It is not sent again." if error.is_final else "It is sent again later."
            return ActionResult(f"The test event was not delivered: {error}. {after}", 409)
        return ActionResult("The test event was delivered." if is_delivered else "The test event was sent.")

    def _drop_unless_subscribed(self, wanted: EventFilter, connection: "Connection") -> None:
        """Forget that subscribing looked like a poll, unless another client subscribes to the same."""
        rows = self._service.log.rows
        if not rows.list_waiting(connection, wanted.principal, wanted.type).get(wanted.arguments):
            rows.drop_interest(connection, wanted)

    async def _find(self, principal: str, id: str) -> tuple[StoredSubscription | None, EventFilter | None]:
        """Return the principal's subscription with this id, or what its streams and polls with this id wait for."""
        log = self._service.log
        if not log.has_interest(principal):
            return None, None
        if id.startswith("sub_") and self._service.subscriptions is not None:
            held = await log.store.read(lambda connection: self._rows.find(connection, id))
            return (held if held is not None and held.active and held.principal == principal else None), None
        interests = await log.store.read(lambda connection: log.rows.list_own_interests(connection, principal))
        return None, next((each.wanted for each in interests if make_reader_id(each.wanted) == id), None)


def make_reader_id(wanted: EventFilter) -> str:
    """Return the id by which the page names a principal's streams and polls of the same events."""
    return "read_" + hashlib.sha256(encode_value([wanted.type, wanted.arguments])).hexdigest()[:32]


def _to_shown_webhook(state: SubscriptionState) -> ShownSubscription:
    held = state.held
    return ShownSubscription(
        held.id,
        held.type,
        format_arguments(held.arguments),
        "webhook",
        held.expires_at,
        parse_right(held.grant_key),
        urlsplit(held.url).hostname or "",
        delivered=held.delivered,
        delivered_at=held.delivered_at,
        waiting=state.waiting,
        failing_since=held.failing_since,
        failure=FAILURES.get(held.last_error or "", ""),
        retry_at=state.retry_at,
    )


def _to_shown_reader(wanted: EventFilter, streams: int, until: float) -> ShownSubscription:
    id, words = make_reader_id(wanted), format_arguments(wanted.arguments)
    return ShownSubscription(id, wanted.type, words, "stream" if streams else "poll", until, streams=streams)


def format_arguments(arguments: str) -> str:
    """Return canonical JSON as `name=value` words."""
    values: dict[str, Any] = msgspec.json.decode(arguments)
    words = (value if isinstance(value, str) else encode_value(value).decode() for value in values.values())
    return " ".join(map("=".join, zip(values, words, strict=True)))

"""Keep the deliveries of subscriptions for the queue of `webhooks/`: which is next, and how each attempt ended.

Events, ends, and that there is a gap, are rows, so a server that is killed sends them after its restart. Each attempt
reads the secrets and the grant again; an end is sent without.
"""

import logging
from collections.abc import Awaitable, Callable, Collection, Iterable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec
from msgspec.structs import replace

from toolgate.server.features.events.delivery.subscription_rows import (
    PendingDelivery,
    StoredEnd,
    StoredSubscription,
    SubscriptionRows,
)
from toolgate.server.features.events.log.cursors import CursorCoder
from toolgate.server.features.events.log.format import format_event
from toolgate.server.features.events.log.rows import Position
from toolgate.server.features.events.webhooks.delivery import Delivery, Disposition, Outcome, create_message_id
from toolgate.server.features.events.webhooks.outbox import PendingSubscription
from toolgate.server.features.events.webhooks.signature import WebhookSecret
from toolgate.server.protocol.messages import encode_value
from toolgate.server.state.store import Store

if TYPE_CHECKING:
    from toolgate.server.base.principals.principal import GrantKey

CONTROL_TRIES = 5  # attempts to tell of a gap or an end: a client that refuses these must still get its events

log = logging.getLogger("toolgate.events")


class NextDelivery(NamedTuple):
    """What a subscription gets next: an event, or with None word of a gap. `watermark`: the position before it."""

    held: StoredSubscription
    event: PendingDelivery | None
    watermark: Position


class EventOutbox:
    """The deliveries of one server's subscriptions.

    - `open_secrets(subscription)` returns those that sign, the newest first.
    - `find_valid(grants)` returns those that still allow access.
    """

    def __init__(
        self,
        store: Store,
        rows: SubscriptionRows,
        cursors: CursorCoder,
        open_secrets: Callable[[StoredSubscription], tuple[WebhookSecret, ...]],
        find_valid: "Callable[[Collection[GrantKey]], Awaitable[Collection[GrantKey]]]",
    ) -> None:
        self._store = store
        self._rows = rows
        self._cursors = cursors
        self._open_secrets = open_secrets
        self._find_valid = find_valid
        self.on_outcome: list[Callable[[Delivery, Outcome], None]] = []  # called when an attempt's end is stored
        self.is_own: Callable[[str], bool] = lambda id: True  # whether this replica delivers for a subscription
        self._gaps: dict[str, Delivery] = {}  # subscription → word of its gap
        self._ends: dict[str, Delivery] = {}  # removed subscription → word of its end

    async def list_pending(self) -> Iterable[PendingSubscription]:
        """Return the subscriptions with something to deliver."""
        found = await self._store.read(self._rows.list_pending)
        return [to_pending(held, due_at) for held, due_at in found if self.is_own(held.id)]

    async def take_due(self, subscriptions: Sequence[str]) -> Sequence[Delivery]:
        """Return what each of these gets next, if its grant is valid and its secret can be opened."""
        ends = [self._ends[id] for id in subscriptions if id in self._ends]
        rest = [id for id in subscriptions if id not in self._ends and self.is_own(id)]

        def look(connection: Any) -> list[NextDelivery]:
            return [found for id in rest if (found := self._find_next(connection, id)) is not None]

        found = await self._store.read(look) if rest else []
        rights = {right for each in found if (right := parse_right(each.held.grant_key)) is not None}
        valid = {None, *(await self._find_valid(rights) if rights else ())}
        allowed = [each for each in found if parse_right(each.held.grant_key) in valid]
        return [*ends, *(delivery for each in allowed if (delivery := self._make(each)) is not None)]

    async def note_outcome(self, delivery: Delivery, outcome: Outcome, retry_at: float | None) -> bool:
        """Store how an attempt ended. Return whether the subscription has more to deliver."""
        id = delivery.subscription
        if _is_same(self._ends.get(id), delivery):
            self._note_control(self._ends, delivery, retry_at)
            if id not in self._ends:
                await self._store.transact(lambda connection: self._rows.drop_end(connection, [id]), alone="events")
            return False
        is_gap = _is_same(self._gaps.get(id), delivery)
        if is_gap:
            self._note_control(self._gaps, delivery, retry_at)
        is_gap_over = is_gap and id not in self._gaps

        def store(connection: Any) -> bool:
            if is_gap_over:
                self._rows.clear_gap(connection, id)
            elif not is_gap and retry_at is not None:
                self._rows.postpone(connection, id, delivery.id, retry_at)
            elif not is_gap:
                is_lost = outcome.disposition is Disposition.FINAL
                self._rows.drop_delivery(connection, id, delivery.id, is_lost=is_lost)
            if outcome.error is None:
                self._rows.note_success(connection, id, is_event=not is_gap)
            else:
                self._rows.note_failure(connection, id, outcome.error)
            return self._rows.has_deliveries(connection, id)

        has_more = await self._store.transact(store, alone="events")
        for notify in self.on_outcome:
            notify(delivery, outcome)
        return has_more

    def has_end(self, id: str) -> bool:
        return id in self._ends

    def add_end(self, end: StoredEnd) -> PendingSubscription:
        """Keep word of the end of a subscription that is removed already."""
        self._ends[end.held.id] = self._make_control(end.held, end.message, end.body)
        return to_pending(end.held)

    def withdraw_end(self, id: str) -> None:
        """Drop word of an end, as the subscription has begun again."""
        self._ends.pop(id, None)

    def forget(self, id: str) -> None:
        """Drop what is in memory of a removed subscription."""
        self._gaps.pop(id, None)
        self._ends.pop(id, None)

    def _find_next(self, connection: Any, id: str) -> NextDelivery | None:
        held = self._rows.find(connection, id)
        if held is None or not held.active:
            return None
        event = None if held.has_gap else self._rows.find_next(connection, held)
        if event is None and not held.has_gap:
            return None
        return NextDelivery(held, event, self._rows.watermark(connection, held))

    def _make(self, found: NextDelivery) -> Delivery | None:
        held, pending, watermark = found
        secrets = self._open_secrets(held)
        if not secrets:
            log.warning("deliveries of %s wait until its client subscribes again: its secret can't be opened", held.id)
            return None
        cursor = self._cursors.format_cursor(held.principal, watermark)
        if pending is None:
            gap = self._gaps.get(held.id) or self._make_gap(held, cursor)
            self._gaps[held.id] = gap = replace(gap, secrets=secrets)
            return gap
        return Delivery(
            id=pending.event.id,
            subscription=held.id,
            principal=held.principal,
            url=held.url,
            body=encode_value(format_event(pending.event, cursor)),
            secrets=secrets,
            attempts=pending.attempts,
            created_at=pending.event.happened_at,
        )

    def _make_gap(self, held: StoredSubscription, cursor: str) -> Delivery:
        return self._make_control(held, create_message_id("gap"), encode_value({"type": "gap", "cursor": cursor}))

    def _make_control(self, held: StoredSubscription, id: str, body: bytes) -> Delivery:
        return Delivery(
            id=id,
            subscription=held.id,
            principal=held.principal,
            url=held.url,
            body=body,
            secrets=self._open_secrets(held),
            attempts=0,
            created_at=self._rows.events.now(),
        )

    @staticmethod
    def _note_control(kept: dict[str, Delivery], delivery: Delivery, retry_at: float | None) -> None:
        """Keep word of a gap or an end for its next attempt, if it has one."""
        attempts = delivery.attempts + 1
        if retry_at is None or attempts >= CONTROL_TRIES:
            del kept[delivery.subscription]
        else:
            kept[delivery.subscription] = replace(delivery, attempts=attempts)


def to_pending(held: StoredSubscription, due_at: float = 0.0) -> PendingSubscription:
    """Return a subscription as the queue has it."""
    return PendingSubscription(held.id, held.principal, held.url, due_at)


def format_right(right: "GrantKey | None") -> str:
    """Return what access depends on as JSON."""
    return msgspec.json.encode(right).decode()


def parse_right(text: str) -> "GrantKey | None":
    """Return what `format_right` was given."""
    value = msgspec.json.decode(text)
    return tuple(value) if isinstance(value, list) else value


def _is_same(kept: Delivery | None, delivery: Delivery) -> bool:
    return kept is not None and kept.id == delivery.id

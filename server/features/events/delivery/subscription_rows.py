"""Store the subscriptions to events by webhook, and the deliveries that are not acknowledged yet.

A delivery's row is written with its event (`EventRows.record`), so a server that is killed delivers after its restart.
"""

from collections.abc import Callable, Collection
from typing import Any

import msgspec

from toolgate.server.features.events.log.rows import FRESH_DELIVERY, EventFilter, EventRows, LoggedEvent, Position
from toolgate.server.state import tables
from toolgate.tools.api.event import matches


class StoredSubscription(msgspec.Struct, frozen=True):
    """A subscription, `active` once its endpoint is verified. `has_gap`: an event was given up, and the client has not
    heard of it. Times are in seconds since the epoch."""

    id: str
    principal: str
    owner: str
    grant_key: str  # JSON
    url: str
    type: str
    arguments: str  # canonical JSON
    sealed: str
    expires_at: float
    made_at: float
    active: bool = False
    previous: str | None = None
    previous_until: float | None = None
    has_gap: bool = False
    delivered: int = 0
    delivered_at: float | None = None
    failing_since: float | None = None
    last_error: str | None = None


class SubscriptionState(msgspec.Struct, frozen=True):
    """A subscription with the number of events that its client has not acknowledged, and when the next attempt is due:
    None if none has failed."""

    held: StoredSubscription
    waiting: int
    retry_at: float | None


class PendingDelivery(msgspec.Struct, frozen=True):
    """An event that a subscription's client has not acknowledged."""

    event: LoggedEvent
    attempts: int


class StoredEnd(msgspec.Struct, frozen=True):
    """The end of a subscription, until its client has heard of it: the id and the body of the message, the
    subscription as it was."""

    message: str
    body: bytes
    held: StoredSubscription


class TooManySubscriptionsError(Exception):
    """The principal has as many subscriptions as it may have."""


class SubscriptionRows:
    """The rows of all subscriptions. Each method runs inside a transaction."""

    def __init__(self, events: EventRows) -> None:
        self.events = events

    def find(self, connection: "tables.Connection", id: str) -> StoredSubscription | None:
        """Return a subscription that has not expired, verified or not."""
        table = tables.event_subscription
        live = table.select().where(table.c.id == id, table.c.expires_at > self.events.now())
        row = connection.execute(live).first()
        return None if row is None else _to_subscription(row)

    def list_active(
        self, connection: "tables.Connection", principal: str | None = None, type: str | None = None
    ) -> list[StoredSubscription]:
        """Return all verified subscriptions that have not expired, or those of a principal to a type."""
        table = tables.event_subscription
        live = table.select().where(table.c.active, table.c.expires_at > self.events.now())
        if principal is not None:
            live = live.where(table.c.principal == principal, table.c.type == type)
        return [_to_subscription(row) for row in connection.execute(live)]

    def list_pending(self, connection: "tables.Connection") -> list[tuple[StoredSubscription, float]]:
        """Return the verified subscriptions that have deliveries or a gap, and when the first is due."""
        delivery = tables.event_delivery
        first = tables.select(delivery.c.subscription, tables.func.min(delivery.c.number).label("number"))
        oldest = first.group_by(delivery.c.subscription).subquery()
        same = (oldest.c.subscription == delivery.c.subscription) & (oldest.c.number == delivery.c.number)
        rows = tables.select(delivery.c.subscription, delivery.c.due_at).select_from(delivery.join(oldest, same))
        due = {row.subscription: row.due_at for row in connection.execute(rows)}
        active = self.list_active(connection)
        return [(held, due.get(held.id, 0.0)) for held in active if held.id in due or held.has_gap]

    def list_states(self, connection: "tables.Connection", principal: str) -> list[SubscriptionState]:
        """Return the verified subscriptions of a principal that have not expired."""
        table, delivery = tables.event_subscription, tables.event_delivery
        live = table.select().where(table.c.active, table.c.expires_at > self.events.now())
        found = [_to_subscription(row) for row in connection.execute(live.where(table.c.principal == principal))]
        mine = delivery.c.subscription.in_([held.id for held in found])
        late = tables.func.max(delivery.c.due_at).label("due_at")  # of the oldest, as the others were never tried
        count = tables.select(delivery.c.subscription, tables.func.count().label("waiting"), late).where(mine)
        rows = {row.subscription: row for row in connection.execute(count.group_by(delivery.c.subscription))}
        return [
            SubscriptionState(held, row.waiting, row.due_at or None)
            if (row := rows.get(held.id)) is not None
            else SubscriptionState(held, 0, None)
            for held in found
        ]

    def begin(
        self,
        connection: "tables.Connection",
        fresh: StoredSubscription,
        after: Position | None,
        not_before: float,
        most: int,
    ) -> tuple[StoredSubscription, Position, bool]:
        """Store a new subscription, not verified yet. Return it, its first position, and whether events were skipped.
        It is verified already if the principal's endpoint is.

        Raises TooManySubscriptionsError beyond `most`.
        """
        table = tables.event_subscription
        own = (table.c.principal == fresh.principal) & (table.c.id != fresh.id)
        alive = tables.select(tables.func.count()).where(own, table.c.expires_at > self.events.now())
        if connection.execute(alive).scalar_one() >= most:
            raise TooManySubscriptionsError
        wanted = EventFilter(fresh.principal, fresh.type, fresh.arguments)
        first = self.events.read_page(connection, wanted, after, 1, not_before)
        self.remove(connection, [fresh.id])  # one that has expired, or its end
        connection.execute(table.insert().values(msgspec.structs.asdict(fresh)))
        begin = first.position
        if after is not None:
            begin = after if after.log == begin.log else Position(begin.log, 0)
        if self._is_verified(connection, fresh):
            return self.activate(connection, fresh, begin, not_before), begin, first.is_truncated
        return fresh, begin, first.is_truncated

    def activate(
        self, connection: "tables.Connection", pending: StoredSubscription, begin: Position, not_before: float
    ) -> StoredSubscription:
        """Note that the endpoint is verified, and have the events since `begin` delivered."""
        table, now = tables.event_subscription, self.events.now()
        tables.write_row(
            connection,
            tables.event_endpoint,
            {"principal": pending.principal, "url": pending.url},
            {"verified_at": now},
        )
        active = msgspec.structs.replace(pending, active=True)
        values = msgspec.structs.asdict(active)
        tables.write_row(connection, table, {"id": values.pop("id")}, values)  # another request may have removed it
        event, arguments = tables.event, msgspec.json.decode(pending.arguments)
        mine = (event.c.principal == pending.principal) & (event.c.type == pending.type)
        since = event.select().where(mine, event.c.number > begin.number, event.c.happened_at >= not_before)
        for row in connection.execute(since).all():
            if matches(arguments, msgspec.json.decode(row.data)):
                delivery = {"subscription": pending.id, "number": row.number, **FRESH_DELIVERY}
                tables.add_row(connection, tables.event_delivery, delivery)
        return active

    def refresh(self, connection: "tables.Connection", changed: StoredSubscription) -> None:
        """Store a subscription that has changed. All that waits for it is due now."""
        table, delivery = tables.event_subscription, tables.event_delivery
        values = msgspec.structs.asdict(changed)
        connection.execute(table.update().where(table.c.id == changed.id).values(values))
        mine = delivery.update().where(delivery.c.subscription == changed.id)
        connection.execute(mine.values(**FRESH_DELIVERY))

    def remove(self, connection: "tables.Connection", ids: Collection[str]) -> list[StoredSubscription]:
        """Remove subscriptions, their deliveries and ends. Return the subscriptions that were there."""
        removed = _remove_rows(connection, ids)
        self.drop_end(connection, ids)
        return removed

    def end(
        self, connection: "tables.Connection", ids: Collection[str], body: bytes, create_id: Callable[[], str]
    ) -> list[StoredEnd]:
        """Remove subscriptions, and store that the clients of verified ones are to hear why: `body`, under an id of
        `create_id()`. Return those ends. An earlier end of a subscription that is gone already stays."""
        active = [held for held in _remove_rows(connection, ids) if held.active]
        self.drop_end(connection, [held.id for held in active])
        ends = [StoredEnd(create_id(), body, held) for held in active]
        for end in ends:
            row = {
                "subscription": end.held.id,
                "principal": end.held.principal,
                "message": end.message,
                "body": body,
                "held": msgspec.json.encode(end.held),
                "ended_at": self.events.now(),
            }
            connection.execute(tables.event_end.insert().values(row))
        return ends

    def list_ends(self, connection: "tables.Connection") -> list[StoredEnd]:
        """Return the ends of which clients have not heard."""
        rows = connection.execute(tables.event_end.select().order_by(tables.event_end.c.ended_at))
        return [
            StoredEnd(row.message, row.body, msgspec.json.decode(row.held, type=StoredSubscription)) for row in rows
        ]

    def drop_end(self, connection: "tables.Connection", ids: Collection[str]) -> None:
        """Forget the ends of these subscriptions."""
        table = tables.event_end
        connection.execute(table.delete().where(table.c.subscription.in_(ids)))

    def remove_pending(self, connection: "tables.Connection", id: str) -> None:
        """Remove a subscription unless it was verified meanwhile."""
        table = tables.event_subscription
        connection.execute(table.delete().where(table.c.id == id, ~table.c.active))

    def watermark(self, connection: "tables.Connection", held: StoredSubscription) -> Position:
        """Return the position up to which every event is acknowledged or given up."""
        delivery = tables.event_delivery
        oldest = tables.select(tables.func.min(delivery.c.number)).where(delivery.c.subscription == held.id)
        number = connection.execute(oldest).scalar_one()
        end = self.events.last_number(connection, held.principal)
        return end if number is None else Position(end.log, number - 1)

    def find_next(self, connection: "tables.Connection", held: StoredSubscription) -> PendingDelivery | None:
        """Return the oldest delivery of a subscription."""
        delivery, event = tables.event_delivery, tables.event
        both = event.join(delivery, (event.c.number == delivery.c.number) & (event.c.principal == held.principal))
        rows = tables.select(*event.c, delivery.c.attempts).select_from(both)
        mine = rows.where(delivery.c.subscription == held.id)
        row = connection.execute(mine.order_by(delivery.c.number).limit(1)).first()
        if row is None:
            return None
        return PendingDelivery(LoggedEvent(row.number, row.id, row.type, row.data, row.happened_at), row.attempts)

    def has_deliveries(self, connection: "tables.Connection", id: str) -> bool:
        """Return whether a live subscription has deliveries, or a gap to tell of."""
        held, delivery = self.find(connection, id), tables.event_delivery
        waiting = delivery.select().where(delivery.c.subscription == id).limit(1)
        return held is not None and (held.has_gap or connection.execute(waiting).first() is not None)

    def drop_delivery(self, connection: "tables.Connection", id: str, event: str, *, is_lost: bool) -> None:
        """Remove the delivery of an event. One that was given up is a gap."""
        table = tables.event_subscription
        connection.execute(tables.event_delivery.delete().where(*_is_of(id, event)))
        if is_lost:
            connection.execute(table.update().where(table.c.id == id).values(has_gap=True))

    def postpone(self, connection: "tables.Connection", id: str, event: str, due_at: float) -> None:
        """Note that an attempt to deliver an event has failed, and when the next one is due."""
        delivery = tables.event_delivery
        this = delivery.update().where(*_is_of(id, event))
        connection.execute(this.values(attempts=delivery.c.attempts + 1, due_at=due_at))

    def note_failure(self, connection: "tables.Connection", id: str, error: str | None) -> None:
        """Note why deliveries to a subscription fail, and since when."""
        table, now = tables.event_subscription, self.events.now()
        since = tables.func.coalesce(table.c.failing_since, now)
        connection.execute(table.update().where(table.c.id == id).values(failing_since=since, last_error=error))

    def note_success(self, connection: "tables.Connection", id: str, *, is_event: bool) -> None:
        """Note that the client has acknowledged a delivery: an event, or word of a gap."""
        table, now = tables.event_subscription, self.events.now()
        success: dict[str, Any] = {"delivered_at": now, "failing_since": None, "last_error": None}
        if is_event:
            success["delivered"] = table.c.delivered + 1
        connection.execute(table.update().where(table.c.id == id).values(success))

    def clear_gap(self, connection: "tables.Connection", id: str) -> None:
        """Note that the client has heard of the gap."""
        table = tables.event_subscription
        connection.execute(table.update().where(table.c.id == id).values(has_gap=False))

    def _is_verified(self, connection: "tables.Connection", held: StoredSubscription) -> bool:
        row = tables.event_endpoint.select().filter_by(principal=held.principal, url=held.url)
        return connection.execute(row).first() is not None


def _remove_rows(connection: "tables.Connection", ids: Collection[str]) -> list[StoredSubscription]:
    table = tables.event_subscription
    found = connection.execute(table.select().where(table.c.id.in_(ids))).all()
    connection.execute(table.delete().where(table.c.id.in_(ids)))
    return [_to_subscription(row) for row in found]


def _is_of(id: str, event: str) -> tuple[Any, ...]:
    """Return the conditions for the delivery of an event, by its id, to a subscription."""
    delivery, table, events = tables.event_delivery, tables.event_subscription, tables.event
    principal = tables.select(table.c.principal).where(table.c.id == id).scalar_subquery()
    number = tables.select(events.c.number).where(events.c.principal == principal, events.c.id == event)
    return delivery.c.subscription == id, delivery.c.number == number.scalar_subquery()


def _to_subscription(row: Any) -> StoredSubscription:
    return StoredSubscription(**{name: getattr(row, name) for name in StoredSubscription.__struct_fields__})

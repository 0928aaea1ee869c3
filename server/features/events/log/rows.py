"""Store the events of each principal, in order and within limits, and what each principal waits for.

An event gets a row only if its principal has interest in it: a poll or a stream within the retention time, or a
subscription. The number of an event is its place in its principal's log. Events that are dropped for a limit leave
their number in `since` of each interest, so a reader that missed one learns of it.
"""

import os
from collections.abc import Callable, Container, Iterator, Sequence
from typing import Any

import msgspec

from toolgate.server.state import flags, tables
from toolgate.server.state.store import Store
from toolgate.tools.api.event import matches

FLAG = flags.EVENTS
MAX_INTERESTS = 256  # of a principal: one more drops the one that was used longest ago
FRESH = 0.75  # an interest is renewed when less than this part of the retention time is left: most polls write nothing
MAX_SCANNED = 2_000  # events that one page looks at
MAX_PAGE = 2**20  # bytes of the payloads of one page
TRIMMED = 64  # events looked at together when some are dropped
END_LIFETIME = 86_400.0  # seconds in which the end of a subscription is told: five attempts take minutes
PIECE = 200  # rows that one transaction of a sweep looks at
WORK = 10  # times that it drops `TRIMMED` events at most: a transaction takes some 15 ms
PENDING = 300.0  # seconds: many times what an endpoint may take to answer the challenge
FRESH_DELIVERY = {"attempts": 0, "due_at": 0.0}


class EventLimits(msgspec.Struct, frozen=True):
    """The limits of a principal's log: events, bytes of payloads, and seconds."""

    count: int = 20_000
    size: int = 16 * 2**20
    age: float = 86_400.0


class Occurrence(msgspec.Struct, frozen=True):
    """What happened to a principal. `id` stands for the occurrence: a repeated one is the same event."""

    principal: str
    type: str
    id: str
    data: bytes  # JSON object


class LoggedEvent(msgspec.Struct, frozen=True):
    number: int
    id: str
    type: str
    data: bytes
    happened_at: float


class Position(msgspec.Struct, frozen=True):
    """A place in the log `log`: after the event `number`."""

    log: str
    number: int


class EventPage(msgspec.Struct, frozen=True):
    """Events after a position. `is_truncated`: some before them were skipped."""

    events: Sequence[LoggedEvent]
    position: Position
    is_truncated: bool = False
    has_more: bool = False


class EventFilter(msgspec.Struct, frozen=True):
    """The events of one type for a principal, as far as they match the arguments (canonical JSON)."""

    principal: str
    type: str
    arguments: str


class EventReader(msgspec.Struct, frozen=True):
    """Who waits for a type: the subscription `id`, or "" for a poll or a stream."""

    arguments: Any
    id: str


class EventInterest(msgspec.Struct, frozen=True):
    """What a poll or a stream waits for. `until`: when it is forgotten, in seconds since the epoch."""

    wanted: EventFilter
    until: float


class SweptLogs(msgspec.Struct, frozen=True):
    """What one piece of a sweep did.

    - `place`: the principal of the last log that is done; None: there are no more
    - `dropped`: whose logs were dropped
    """

    place: str | None
    dropped: Sequence[str]


class EventRows:
    """The rows of all logs. Each method runs inside a transaction. `now`: seconds since the epoch."""

    def __init__(self, store: Store, limits: EventLimits, now: Callable[[], float]) -> None:
        self.store = store
        self.limits = limits
        self.now = now

    def record(
        self, connection: "tables.Connection", occurrence: Occurrence, only: Container[str] | None = None
    ) -> LoggedEvent | None:
        """Store an event, with its deliveries: to `only` these subscriptions, if given. Return None if nobody waits for
        it, or it is stored already."""
        return next(iter(self.record_all(connection, occurrence.principal, [occurrence], only)), None)

    def record_all(
        self,
        connection: "tables.Connection",
        principal: str,
        occurrences: Sequence[Occurrence],
        only: Container[str] | None = None,
    ) -> list[LoggedEvent]:
        """Store events of a principal in order, as `record`, and return those that are stored."""
        log: Any = None
        stored: list[LoggedEvent] = []
        deliveries: list[dict[str, Any]] = []
        readers = {
            type: self._list_readers(connection, principal, type) for type in {each.type for each in occurrences}
        }
        for each in occurrences:
            payload = msgspec.json.decode(each.data)
            waiting = [reader for reader in readers[each.type] if matches(reader.arguments, payload)]
            subscriptions = [reader.id for reader in waiting if reader.id and (only is None or reader.id in only)]
            if not subscriptions and all(reader.id for reader in waiting):
                continue
            log = log or self._open_log(connection, principal)
            found = LoggedEvent(log.last + len(stored) + 1, each.id, each.type, each.data, self.now())
            if tables.add_row(connection, tables.event, {"principal": principal, **msgspec.structs.asdict(found)}):
                stored.append(found)
                deliveries += [{"subscription": id, "number": found.number, **FRESH_DELIVERY} for id in subscriptions]
        if stored:
            size = sum(len(each.data) for each in stored)
            counts = {"event_count": log.event_count + len(stored), "byte_count": log.byte_count + size}
            self._save_log(connection, principal, last=stored[-1].number, **counts)
            if deliveries:
                connection.execute(tables.event_delivery.insert(), deliveries)
            self.trim(connection, principal)
        return stored

    def read_page(
        self,
        connection: "tables.Connection",
        wanted: EventFilter,
        after: Position | None,
        most: int,
        not_before: float = 0.0,
    ) -> EventPage:
        """Return at most `most` events after a position, none that happened before `not_before`; without a position
        the present one. The filter becomes an interest, or a renewed one."""
        since = self._renew_interest(connection, wanted)
        log = self._open_log(connection, wanted.principal)
        return self._read_after(connection, wanted, log, since, after, most, not_before)

    def peek_page(
        self,
        connection: "tables.Connection",
        wanted: EventFilter,
        after: Position | None,
        most: int,
        not_before: float = 0.0,
    ) -> EventPage | None:
        """Return what `read_page` does, or None where it would write: for a new interest, or one to be renewed."""
        interest = connection.execute(
            tables.event_interest.select().filter_by(**msgspec.structs.asdict(wanted))
        ).first()
        log = connection.execute(tables.event_log.select().filter_by(principal=wanted.principal)).first()
        if interest is None or log is None or interest.until < self.now() + FRESH * self.limits.age:
            return None
        return self._read_after(connection, wanted, log, interest.since, after, most, not_before)

    def _read_after(
        self,
        connection: "tables.Connection",
        wanted: EventFilter,
        log: Any,
        since: int,
        after: Position | None,
        most: int,
        not_before: float,
    ) -> EventPage:
        if after is None:
            return EventPage((), Position(log.name, log.last))
        is_known = after.log == log.name and after.number <= log.last
        begin = after.number if is_known else 0
        is_truncated = not is_known or begin < since
        oldest = max(not_before, self.now() - self.limits.age)
        arguments = msgspec.json.decode(wanted.arguments)
        events, size, end = list[LoggedEvent](), 0, begin
        for count, found in enumerate(self._read_events(connection, wanted, begin)):
            is_full = len(events) == most or (events and size + len(found.data) > MAX_PAGE)
            if is_full or count == MAX_SCANNED:
                return EventPage(events, Position(log.name, end), is_truncated, has_more=True)
            end = found.number
            if not matches(arguments, msgspec.json.decode(found.data)):
                continue
            if found.happened_at < oldest:
                is_truncated = True
                continue
            events.append(found)
            size += len(found.data)
        return EventPage(events, Position(log.name, log.last), is_truncated)

    def last_number(self, connection: "tables.Connection", principal: str) -> Position:
        """Return the present end of the principal's log."""
        log = self._open_log(connection, principal)
        return Position(log.name, log.last)

    def trim(self, connection: "tables.Connection", principal: str) -> None:
        """Drop the oldest events beyond the limits."""
        while self._drop_oldest(connection, principal):
            pass

    def remove_expired(self, connection: "tables.Connection") -> bool:
        """Remove some interests, subscriptions and ends that are too old. Return whether there may be more.

        A subscription that has waited for its endpoint for `PENDING` seconds was left by a server that was killed.
        """
        interest, subscription, end, now = (
            tables.event_interest,
            tables.event_subscription,
            tables.event_end,
            self.now(),
        )
        delivery = tables.event_delivery
        removed = _remove_some(connection, interest, interest.c.until <= now)
        removed += _remove_some(connection, end, end.c.ended_at <= now - END_LIFETIME)
        for over in (
            subscription.c.expires_at <= now,
            ~subscription.c.active & (subscription.c.made_at <= now - PENDING),
        ):
            ids = tables.select(subscription.c.id).where(over).limit(PIECE)
            deliveries = _remove_some(connection, delivery, delivery.c.subscription.in_(list(connection.scalars(ids))))
            removed += deliveries or _remove_some(connection, subscription, over)
        return removed > 0

    def sweep(self, connection: "tables.Connection", after: str) -> SweptLogs:
        """Drop what is too old in some logs, and those of them that nobody reads any more.

        - `after`: the principal of the log before them
        """
        log, dropped, work, place = tables.event_log, list[str](), WORK, after
        rows = connection.execute(
            self._find_old().where(log.c.principal > after).order_by(log.c.principal).limit(PIECE)
        )
        found = rows.all()
        for row in found:
            while (row.is_old or not row.is_read) and self._drop_oldest(
                connection, row.principal, every=not row.is_read
            ):
                work -= 1
                if work == 0:
                    return SweptLogs(place, dropped)
            if not row.is_read:
                self.drop_log(connection, row.principal)
                dropped.append(row.principal)
            place = row.principal
        return SweptLogs(place if len(found) == PIECE else None, dropped)

    def _find_old(self) -> Any:
        """Return the query for all logs: whether each is beyond its limits, and whether anybody reads it."""
        log, event = tables.event_log, tables.event
        first = tables.select(event.c.happened_at).where(event.c.principal == log.c.principal).order_by(event.c.number)
        is_old = first.limit(1).scalar_subquery() < self.now() - self.limits.age
        is_full = (log.c.event_count > self.limits.count) | (log.c.byte_count > self.limits.size)
        parts = (tables.event_interest, tables.event_subscription)
        polled, subscribed = (
            tables.select(part.c.principal).where(part.c.principal == log.c.principal).exists() for part in parts
        )
        old, read = tables.func.coalesce(is_old, False) | is_full, polled | subscribed
        return tables.select(log.c.principal, old.label("is_old"), read.label("is_read"))

    def _drop_oldest(self, connection: "tables.Connection", principal: str, *, every: bool = False) -> bool:
        """Drop some of the oldest events beyond the limits, or of `every` event. Return whether there were any."""
        event, oldest = tables.event, self.now() - self.limits.age
        mine = event.c.principal == principal
        log = self._open_log(connection, principal)
        count, size, dropped = log.event_count, log.byte_count, list[LoggedEvent]()
        rows = connection.execute(event.select().where(mine).order_by(event.c.number).limit(TRIMMED))
        for found in map(_to_event, rows):
            is_within = count <= self.limits.count and size <= self.limits.size and found.happened_at >= oldest
            if is_within and not every:
                break
            count, size = count - 1, size - len(found.data)
            dropped.append(found)
        if dropped:
            connection.execute(event.delete().where(mine, event.c.number <= dropped[-1].number))
            self._save_log(connection, principal, event_count=count, byte_count=size)
            self._note_dropped(connection, principal, dropped)
        return bool(dropped)

    def drop_log(self, connection: "tables.Connection", principal: str) -> None:
        """Drop all events, interests and subscriptions of a principal."""
        parts = (
            tables.event,
            tables.event_interest,
            tables.event_subscription,
            tables.event_endpoint,
            tables.event_log,
        )
        for table in parts:
            connection.execute(table.delete().where(table.c.principal == principal))

    def clear_flags(self, connection: "tables.Connection", principals: Sequence[str]) -> None:
        """Remove the flags of logs that an earlier transaction has dropped."""
        table = tables.event_log
        for principal in principals:
            mine = tables.select(table.c.principal).where(table.c.principal == principal)
            if connection.execute(mine).first() is None:
                self.store.set_flag(FLAG, principal, False)
        rest = (tables.select(each.c.principal).limit(1) for each in (table, tables.event_end))
        if all(connection.execute(row).first() is None for row in rest):
            self.store.set_flag(FLAG, "", False)

    def note_gap(self, connection: "tables.Connection", wanted: EventFilter) -> None:
        """Note for the readers of a filter that events may have been missed, which are in no log."""
        log = self._open_log(connection, wanted.principal)
        key = msgspec.structs.asdict(wanted)
        interest, subscription = tables.event_interest, tables.event_subscription
        connection.execute(subscription.update().filter_by(**key).values(has_gap=True))
        found = connection.execute(interest.update().filter_by(**key).values(since=log.last + 1))
        if found.rowcount:
            self._save_log(connection, wanted.principal, last=log.last + 1)

    def note_gaps(self, connection: "tables.Connection", principal: str, type: str) -> None:
        """Note for all readers of a type that events are lost, which are in no log."""
        for wanted in self.list_interests(connection, [type], principal):
            self.note_gap(connection, wanted)

    def list_interests(
        self, connection: "tables.Connection", types: Sequence[str], principal: str | None = None
    ) -> list[EventFilter]:
        """Return what principals, or one, wait for among these types, by any way."""
        interest, subscription = tables.event_interest, tables.event_subscription
        polled = interest.select().where(interest.c.type.in_(types), interest.c.until > self.now())
        subscribed = subscription.select().where(subscription.c.type.in_(types))
        if principal is not None:
            polled = polled.where(interest.c.principal == principal)
            subscribed = subscribed.where(subscription.c.principal == principal)
        rows = [*connection.execute(polled), *connection.execute(subscribed)]
        return list({EventFilter(row.principal, row.type, row.arguments): None for row in rows})

    def list_own_interests(self, connection: "tables.Connection", principal: str) -> list[EventInterest]:
        """Return what a principal polls or streams, the last used first."""
        table = tables.event_interest
        mine = table.select().where(table.c.principal == principal, table.c.until > self.now())
        rows = connection.execute(mine.order_by(table.c.until.desc(), table.c.since.desc()))
        return [EventInterest(EventFilter(row.principal, row.type, row.arguments), row.until) for row in rows]

    def drop_interest(self, connection: "tables.Connection", wanted: EventFilter) -> bool:
        """Forget that a principal polls or streams these events. Return whether it did."""
        key = msgspec.structs.asdict(wanted)
        return bool(connection.execute(tables.event_interest.delete().filter_by(**key)).rowcount)

    def list_waiting(self, connection: "tables.Connection", principal: str, type: str) -> dict[str, list[str]]:
        """Return the arguments with which a principal waits for a type, each with the ids of its subscriptions."""
        interest, subscription, now = tables.event_interest, tables.event_subscription, self.now()
        polled = interest.select().filter_by(principal=principal, type=type).where(interest.c.until > now)
        found: dict[str, list[str]] = {row.arguments: [] for row in connection.execute(polled)}
        mine = subscription.select().filter_by(principal=principal, type=type, active=True)
        for row in connection.execute(mine.where(subscription.c.expires_at > now)):
            found.setdefault(row.arguments, []).append(row.id)
        return found

    def _read_events(self, connection: "tables.Connection", wanted: EventFilter, begin: int) -> Iterator[LoggedEvent]:
        event = tables.event
        mine = (event.c.principal == wanted.principal) & (event.c.type == wanted.type) & (event.c.number > begin)
        rows = event.select().where(mine).order_by(event.c.number).limit(MAX_SCANNED + 1)
        return map(_to_event, connection.execute(rows))

    def _open_log(self, connection: "tables.Connection", principal: str) -> Any:
        """Return the principal's log, which no other transaction changes until this one ends; a new one sets the flags.

        To-dos, callbacks and tasks record events under locks of their own. So PostgreSQL must lock the row: two
        transactions would give one number to two events.
        """
        table = tables.event_log
        locked = table.select().where(table.c.principal == principal).with_for_update()
        found = connection.execute(locked).first()
        if found is not None:
            return found
        row = {"principal": principal, "name": os.urandom(8).hex(), "last": 0, "event_count": 0, "byte_count": 0}
        tables.add_row(connection, table, row)
        for key in ("", principal):
            self.store.set_flag(FLAG, key, True)
        return connection.execute(locked).one()

    def _save_log(self, connection: "tables.Connection", principal: str, **values: int) -> None:
        table = tables.event_log
        connection.execute(table.update().where(table.c.principal == principal).values(values))

    def _renew_interest(self, connection: "tables.Connection", wanted: EventFilter) -> int:
        """Note that the principal waits for these events. Return the number up to which some may be missing.

        A new interest gets a number of its own: a cursor from before it must show that events were not recorded.
        """
        table, now = tables.event_interest, self.now()
        key = msgspec.structs.asdict(wanted)
        row = connection.execute(table.select().filter_by(**key)).first()
        until = now + self.limits.age
        if row is not None and row.until > now:
            if row.until < now + FRESH * self.limits.age:
                connection.execute(table.update().filter_by(**key).values(until=until))
            return int(row.since)
        log = self._open_log(connection, wanted.principal)
        self._save_log(connection, wanted.principal, last=log.last + 1)
        tables.write_row(connection, table, key, {"since": log.last + 1, "until": until})
        self._drop_oldest_interests(connection, wanted.principal)
        return int(log.last) + 1

    def _drop_oldest_interests(self, connection: "tables.Connection", principal: str) -> None:
        table = tables.event_interest
        mine = table.select().where(table.c.principal == principal).order_by(table.c.until.desc(), table.c.since.desc())
        for row in connection.execute(mine.offset(MAX_INTERESTS)).all():
            connection.execute(table.delete().filter_by(principal=principal, type=row.type, arguments=row.arguments))

    def _list_readers(self, connection: "tables.Connection", principal: str, type: str) -> list[EventReader]:
        """Return who waits for a type: by poll or stream, and by live subscriptions."""
        interest, subscription, now = tables.event_interest, tables.event_subscription, self.now()
        polled = interest.select().where(
            interest.c.principal == principal, interest.c.type == type, interest.c.until > now
        )
        subscribed = subscription.select().where(
            subscription.c.principal == principal,
            subscription.c.type == type,
            subscription.c.active,
            subscription.c.expires_at > now,
        )
        rows = [(row.arguments, "") for row in connection.execute(polled)]
        rows += [(row.arguments, row.id) for row in connection.execute(subscribed)]
        return [EventReader(msgspec.json.decode(arguments), id) for arguments, id in rows]

    def _note_dropped(self, connection: "tables.Connection", principal: str, dropped: Sequence[LoggedEvent]) -> None:
        """Note for each reader of these events that they are gone."""
        interest = tables.event_interest
        types = {found.type for found in dropped}
        readers = interest.select().where(interest.c.principal == principal, interest.c.type.in_(types))
        for row in connection.execute(readers).all():
            arguments = msgspec.json.decode(row.arguments)
            mine = (found for found in dropped if found.type == row.type)
            last = max(
                (found.number for found in mine if matches(arguments, msgspec.json.decode(found.data))), default=0
            )
            if last > row.since:
                this = interest.update().filter_by(principal=principal, type=row.type, arguments=row.arguments)
                connection.execute(this.values(since=last))
        delivery, subscription = tables.event_delivery, tables.event_subscription
        subscribed = tables.select(subscription.c.id).where(subscription.c.principal == principal)
        gone = delivery.delete().where(delivery.c.subscription.in_(subscribed), delivery.c.number <= dropped[-1].number)
        ids = set(connection.execute(gone.returning(delivery.c.subscription)).scalars())
        if ids:
            connection.execute(subscription.update().where(subscription.c.id.in_(ids)).values(has_gap=True))


def _remove_some(connection: "tables.Connection", table: Any, condition: Any) -> int:
    """Remove at most `PIECE` rows that fulfil a condition, and return their number."""
    key = tuple(table.primary_key)
    keys = connection.execute(tables.select(*key).where(condition).limit(PIECE)).all()
    if keys:
        this = (column == tables.bindparam(f"of_{column.name}") for column in key)
        rows = [{f"of_{column.name}": value for column, value in zip(key, row, strict=True)} for row in keys]
        connection.execute(table.delete().where(*this), rows)
    return len(keys)


def _to_event(row: Any) -> LoggedEvent:
    return LoggedEvent(row.number, row.id, row.type, row.data, row.happened_at)

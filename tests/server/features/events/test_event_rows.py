"""The log of events in the state: its numbers, its limits, and what a reader learns of what it missed."""

import asyncio
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Connection

from tests.server.state.each_store import ON_EACH, with_store
from toolgate.server.features.events.delivery.subscription_rows import (
    StoredSubscription,
    SubscriptionRows,
    SubscriptionState,
)
from toolgate.server.features.events.log.cursors import CursorCoder
from toolgate.server.features.events.log.rows import (
    MAX_INTERESTS,
    EventFilter,
    EventLimits,
    EventPage,
    EventRows,
    Occurrence,
    Position,
    SweptLogs,
)
from toolgate.server.protocol.errors import InvalidParams
from toolgate.server.state import tables
from toolgate.server.state.keys.file import KeyFile
from toolgate.server.state.sqlite.store import SqliteStore
from toolgate.server.state.store import Store, Subject

ALL = EventFilter("ada", "built", "{}")
LOCKS: tuple[Subject, ...] = ("events", "todos", "tasks", "callbacks")  # of the transactions that record events


def run(folder: Path, work: Callable[[Connection, EventRows, list[float]], Any], **limits: Any) -> Any:
    """Run `work` in one transaction, with a clock that it can set."""
    store, clock = SqliteStore(folder), [1_000.0]
    rows = EventRows(store, EventLimits(**limits), lambda: clock[0])
    try:
        return asyncio.run(store.transact(lambda connection: work(connection, rows, clock)))
    finally:
        store.close()


def happen(connection: Connection, rows: EventRows, *ids: str, principal: str = "ada", data: bytes = b"{}") -> None:
    for id in ids:
        rows.record(connection, Occurrence(principal, "built", id, data))


def ids(page: EventPage) -> list[str]:
    return [found.id for found in page.events]


def test_an_event_that_nobody_waits_for_has_no_row(tmp_path: Path) -> None:
    def work(connection: Connection, rows: EventRows, _: Any) -> None:
        assert rows.record(connection, Occurrence("ada", "built", "one", b"{}")) is None
        begin = rows.read_page(connection, ALL, None, 10).position
        happen(connection, rows, "two")
        happen(connection, rows, "three", principal="bob")
        assert ids(rows.read_page(connection, ALL, begin, 10)) == ["two"]
        bob = rows.read_page(connection, EventFilter("bob", "built", "{}"), None, 10)
        assert ids(rows.read_page(connection, EventFilter("bob", "built", "{}"), bob.position, 10)) == []

    run(tmp_path, work)


def test_a_repeated_occurrence_is_one_event(tmp_path: Path) -> None:
    def work(connection: Connection, rows: EventRows, _: Any) -> None:
        begin = rows.read_page(connection, ALL, None, 10).position
        happen(connection, rows, "one", "one", "two", "one")
        assert ids(rows.read_page(connection, ALL, begin, 10)) == ["one", "two"]

    run(tmp_path, work)


@pytest.mark.parametrize("limits", [{"count": 2}, {"size": 20}])
def test_the_oldest_events_make_room(tmp_path: Path, limits: dict[str, int]) -> None:
    def work(connection: Connection, rows: EventRows, _: Any) -> None:
        begin = rows.read_page(connection, ALL, None, 10).position
        happen(connection, rows, "one", "two", "three", data=b'{"a":1234}')
        page = rows.read_page(connection, ALL, begin, 10)
        assert (ids(page), page.is_truncated) == (["two", "three"], True)
        assert not rows.read_page(connection, ALL, page.position, 10).is_truncated

    run(tmp_path, work, **limits)


def test_an_event_that_a_reader_did_not_wait_for_is_no_gap(tmp_path: Path) -> None:
    def work(connection: Connection, rows: EventRows, _: Any) -> None:
        two = EventFilter("ada", "built", '{"id":2}')
        begin = rows.read_page(connection, two, None, 10).position
        rows.read_page(connection, ALL, None, 10)
        happen(connection, rows, "one", "more", data=b'{"id":1}')
        happen(connection, rows, "two", data=b'{"id":2}')
        page = rows.read_page(connection, two, begin, 10)
        assert (ids(page), page.is_truncated) == (["two"], False)

    run(tmp_path, work, count=1)


def test_old_events_are_not_read_and_dropped_by_a_sweep(tmp_path: Path) -> None:
    def work(connection: Connection, rows: EventRows, clock: list[float]) -> None:
        begin = rows.read_page(connection, ALL, None, 10).position
        happen(connection, rows, "one")
        clock[0] += 8
        rows.read_page(connection, ALL, begin, 10)  # renews the interest
        clock[0] += 8
        page = rows.read_page(connection, ALL, begin, 10)
        assert (ids(page), page.is_truncated) == ([], True)
        assert not rows.remove_expired(connection)
        assert rows.sweep(connection, "") == SweptLogs(None, [])
        clock[0] += 16
        assert rows.remove_expired(connection) and not rows.remove_expired(connection)
        dropped = rows.sweep(connection, "").dropped
        assert dropped == ["ada"]
        assert rows.store.has_flag("events", "ada")
        rows.clear_flags(connection, dropped)
        assert not rows.store.has_flag("events", "ada")
        assert not rows.store.has_flag("events", "")
        assert rows.read_page(connection, ALL, begin, 10).is_truncated

    run(tmp_path, work, age=10.0)


def test_a_log_of_many_old_events_is_dropped_in_pieces(tmp_path: Path) -> None:
    def work(connection: Connection, rows: EventRows, clock: list[float]) -> None:
        for principal in ("ada", "bob"):
            rows.read_page(connection, EventFilter(principal, "built", "{}"), None, 10)
        row = {"type": "built", "data": b"{}", "happened_at": clock[0]}
        many = [{**row, "principal": "ada", "number": n, "id": f"evt_{n}"} for n in range(2, 3_002)]
        connection.execute(tables.event.insert(), many)
        rows._save_log(connection, "ada", last=3_001, event_count=3_000, byte_count=6_000)
        clock[0] += 11
        assert rows.remove_expired(connection)
        left, dropped, pieces = 3_000, list[str](), 0
        place: str | None = ""
        while place is not None:
            swept = rows.sweep(connection, place)
            place, dropped, pieces = swept.place, [*dropped, *swept.dropped], pieces + 1
            count = connection.scalar(tables.select(tables.func.count()).select_from(tables.event)) or 0
            assert left - count <= 10 * 64
            left = count
        assert (dropped, left) == (["ada", "bob"], 0) and pieces > 1

    run(tmp_path, work, age=10.0)


def test_a_cursor_from_before_a_lapse_is_truncated(tmp_path: Path) -> None:
    def work(connection: Connection, rows: EventRows, clock: list[float]) -> None:
        begin = rows.read_page(connection, ALL, None, 10).position
        rows.read_page(connection, EventFilter("ada", "other", "{}"), None, 10)
        clock[0] += 11
        happen(connection, rows, "missed")
        assert rows.read_page(connection, ALL, begin, 10).is_truncated

    run(tmp_path, work, age=10.0)


def test_the_interest_used_longest_ago_makes_room(tmp_path: Path) -> None:
    def work(connection: Connection, rows: EventRows, clock: list[float]) -> None:
        first = EventFilter("ada", "built", '{"id":0}')
        begin = rows.read_page(connection, first, None, 10).position
        for number in range(1, MAX_INTERESTS + 1):
            clock[0] += 1
            rows.read_page(connection, EventFilter("ada", "built", f'{{"id":{number}}}'), None, 10)
        happen(connection, rows, "zero", data=b'{"id":0}')
        page = rows.read_page(connection, first, begin, 10)
        assert (ids(page), page.is_truncated) == ([], True)

    run(tmp_path, work)


def test_pages_are_bounded_in_what_they_look_at(tmp_path: Path) -> None:
    def work(connection: Connection, rows: EventRows, _: Any) -> None:
        two = EventFilter("ada", "built", '{"id":2}')
        begin = rows.read_page(connection, two, None, 10).position
        rows.read_page(connection, ALL, None, 10)
        ones = [Occurrence("ada", "built", f"one-{number}", b'{"id":1}') for number in range(2_500)]
        rows.record_all(connection, "ada", ones)
        happen(connection, rows, "two", data=b'{"id":2}')
        page = rows.read_page(connection, two, begin, 10)
        assert (ids(page), page.has_more) == ([], True)
        page = rows.read_page(connection, two, page.position, 10)
        assert (ids(page), page.has_more, page.is_truncated) == (["two"], False, False)

    run(tmp_path, work)


def test_a_cursor_is_good_for_its_principal_alone(tmp_path: Path) -> None:
    coder, place = CursorCoder(KeyFile(tmp_path / "key")), Position("ab" * 8, 7)
    cursor = coder.format_cursor("ada", place)
    assert coder.parse_cursor("ada", cursor) == place
    assert CursorCoder(KeyFile(tmp_path / "key")).parse_cursor("ada", cursor) == place
    forged = ("A" if cursor[0] != "A" else "B") + cursor[1:]
    for principal, text in (("bob", cursor), ("ada", forged), ("ada", ""), ("ada", "é"), ("ada", cursor * 9)):
        with pytest.raises(InvalidParams):
            coder.parse_cursor(principal, text)


@ON_EACH
def test_events_that_are_recorded_under_different_locks_are_all_stored(tmp_path: Path) -> None:
    def record(number: int, rows: EventRows, lock: Subject, connection: Connection) -> None:
        rows.record(connection, Occurrence(f"{number}", "built", lock, b"{}"))

    async def body(store: Store) -> None:
        rows = EventRows(store, EventLimits(), lambda: 1_000.0)
        for number in range(10):
            wanted = EventFilter(f"{number}", "built", "{}")
            read = partial(rows.read_page, wanted=wanted, most=10)
            begin = (await store.transact(partial(read, after=None), alone="events")).position
            await asyncio.gather(
                *(store.transact(partial(record, number, rows, lock), alone=lock) for lock in LOCKS),
            )
            assert sorted(ids(await store.transact(partial(read, after=begin), alone="events"))) == sorted(LOCKS)

    with_store(tmp_path, body)


@ON_EACH
def test_a_log_that_two_transactions_open_first_is_one(tmp_path: Path) -> None:
    async def body(store: Store) -> None:
        rows = EventRows(store, EventLimits(), lambda: 1_000.0)
        for number in range(10):
            last = partial(rows.last_number, principal=f"{number}")
            found = await asyncio.gather(*(store.transact(last, alone=lock) for lock in LOCKS))
            assert len({position.log for position in found}) == 1

    with_store(tmp_path, body)


@ON_EACH
def test_a_subscription_counts_what_its_client_has_acknowledged(tmp_path: Path) -> None:
    async def body(store: Store) -> None:
        rows = EventRows(store, EventLimits(), lambda: 1_000.0)
        subscriptions = SubscriptionRows(rows)

        def work(connection: Any) -> list[SubscriptionState]:
            for id, whose in (("one", "ada"), ("two", "ada"), ("three", "bob")):
                fresh = StoredSubscription(id, whose, "", '"g"', "https://x", "built", "{}", "", 2_000.0, 1_000.0)
                made, begin, _ = subscriptions.begin(connection, fresh, None, 0.0, 9)
                subscriptions.activate(connection, made, begin, 0.0)
            for id in ("first", "second"):
                rows.record(connection, Occurrence("ada", "built", id, b"{}"), {"one"})
            subscriptions.postpone(connection, "one", "first", 1_030.0)
            subscriptions.note_failure(connection, "one", "timeout")
            for is_event in (True, True, False):
                subscriptions.note_success(connection, "two", is_event=is_event)
            return sorted(subscriptions.list_states(connection, "ada"), key=lambda state: state.held.id)

        one, two = await store.transact(work)
        assert (one.waiting, one.retry_at, one.held.failing_since, one.held.delivered) == (2, 1_030.0, 1_000.0, 0)
        assert (two.waiting, two.retry_at, two.held.delivered_at, two.held.delivered) == (0, None, 1_000.0, 2)

    with_store(tmp_path, body)

"""Record what happens to principals who wait for it, and read it again.

An event is written down before anybody is told of it. For a principal without interest that costs a stat.
"""

import asyncio
import hashlib
import logging
import os
from collections.abc import Callable, Container, Coroutine, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any

import msgspec

from toolgate.server.base.errors import StateError
from toolgate.server.base.limits.rate_limit import ANY, CallRateLimiter
from toolgate.server.features.events.log.errors import EventError
from toolgate.server.features.events.log.rows import (
    FLAG,
    EventFilter,
    EventLimits,
    EventPage,
    EventRows,
    Occurrence,
    Position,
)
from toolgate.server.features.events.log.samples import make_sample
from toolgate.server.features.events.log.writer import EventWriter
from toolgate.server.protocol.messages import encode_value
from toolgate.server.state.store import Store
from toolgate.tools.api.event import EventType

if TYPE_CHECKING:
    from toolgate.server.state.store import Connection

MAX_PAYLOAD = 64 * 2**10  # bytes of JSON: an event wakes an agent, which reads the rest with a tool
SWEEP_INTERVAL = 3_600.0  # seconds between two searches for what is too old
MAX_TESTS = 20  # requests for test events of one principal a minute: each may post to all subscriptions
STOPPING = 1.0  # seconds for the last events to be recorded
PROMPT = 1.0  # seconds that a call waits for an event of its own, once it is decided

log = logging.getLogger("toolgate.events")


class EventLog:
    """The logs of all principals of one server. `now`: seconds since the epoch."""

    def __init__(self, store: Store, limits: EventLimits | None = None, now: Callable[[], float] | None = None) -> None:
        self.store = store
        self.rows = EventRows(store, limits or EventLimits(), now or store.now)
        self.on_news: list[Callable[[str, str], None]] = []  # called in the loop: principal, and name of the type
        self.on_change: list[Callable[[str], None]] = []  # called in the loop: a principal whose subscriptions changed
        self.publish: Callable[[str, str], None] | None = None  # tells the other replicas
        self._loop: asyncio.AbstractEventLoop | None = None
        self._test_rate = CallRateLimiter({ANY: MAX_TESTS})
        self._work: set[asyncio.Task[None]] = set()
        self.writer = EventWriter(store, self.rows, self._announce)

    def start(self) -> None:
        """Announce events recorded within others' transactions, from now on."""
        self._loop = asyncio.get_running_loop()
        self.writer.note_earlier_gaps()

    def has_interest(self, principal: str) -> bool:
        """Return whether any event of the principal may be wanted. Costs a stat, and never opens the database."""
        return self.store.has_flag(FLAG, principal)

    def record(self, connection: "Connection", principal: str, type: EventType, key: str | None, payload: Any) -> None:
        """Record an event within the transaction that makes it happen, in the store's thread.

        `key` tells it from the others of its type: one that is recorded again is the same event. Without a `key` it is
        another event each time.
        """
        if not self.has_interest(principal):
            return
        occurrence = _try_to_make(principal, type, key, payload)
        if occurrence is None:
            return
        if self.rows.record(connection, occurrence) is not None and self._loop is not None:
            with suppress(RuntimeError):  # the loop has ended
                self._loop.call_soon_threadsafe(self._announce, principal, type.name)

    async def emit(self, principal: str, type: EventType, payload: Any, key: str | None = None) -> None:
        """Emit an event, and wait until it is stored. Without a `key` each call is another event."""
        occurrence = _try_to_make(principal, type, key, payload) if self.has_interest(principal) else None
        if occurrence is not None:
            await self.writer.add(occurrence)

    async def emit_durable(self, principal: str, type: EventType, payload: Any, key: str) -> bool:
        """Emit an event that its source emits again after a restart, until it is stored. Return whether it is, or
        nobody waits for it."""
        occurrence = _try_to_make(principal, type, key, payload) if self.has_interest(principal) else None
        return occurrence is None or await self.writer.add(occurrence, is_durable=True)

    async def emit_promptly(self, principal: str, type: EventType, payload: Any, key: str | None = None) -> None:
        """Emit an event, and wait a while until it is stored. It is stored later where the state can't be written."""
        with suppress(TimeoutError):
            async with asyncio.timeout(PROMPT):
                await asyncio.shield(self.emit(principal, type, payload, key))

    def emit_soon(self, principal: str, type: EventType, payload: Any, key: str | None = None) -> None:
        """Emit an event without waiting for it."""
        occurrence = _try_to_make(principal, type, key, payload) if self.has_interest(principal) else None
        if occurrence is not None:
            self.writer.add(occurrence)

    def run_soon(self, work: Coroutine[Any, Any, None]) -> None:
        """Run work in a task of its own. A failure is logged."""
        task = asyncio.get_running_loop().create_task(_log_failure(work))
        self._work.add(task)
        task.add_done_callback(self._work.discard)

    async def send_tests(
        self,
        principal: str,
        type: EventType,
        arguments: Mapping[str, Any] | None = None,
        only: Container[str] | None = None,
    ) -> list[str]:
        """Record a test event with these arguments for those who wait for such an event, and return its id in a list,
        empty if nobody waits. Without arguments there is one for each set of arguments that is waited for.

        - `only`: the subscriptions that it is delivered to.

        Raises EventError if no test fits the type, and after MAX_TESTS a minute. Raises StateError.
        """
        if not self.has_interest(principal):
            return []
        if refusal := await self._test_rate.admit(principal):
            raise EventError("ResourceExhausted", f"too many test events: {refusal}", limit="tests", max=MAX_TESTS)

        def record(connection: "Connection") -> list[str]:
            tests = [(make_test(principal, type, arguments), only)] if arguments is not None else []
            if arguments is None:
                for text, ids in self.rows.list_waiting(connection, principal, type.name).items():
                    tests.append((make_test(principal, type, msgspec.json.decode(text)), ids))
            found = (self.rows.record(connection, test, whose) for test, whose in tests)
            return [each.id for each in found if each is not None]

        ids = await self.store.transact(record, alone="events")
        if ids:
            self._announce(principal, type.name)
        return ids

    def take_event(self, type: EventType, principal: str, payload: Any, key: str | None) -> None:
        """Emit an event of a plugin or another feature, from whichever thread. Raises ValueError for a payload that
        does not fit."""
        try:
            data = make_occurrence(principal, type, key or "", payload).data
            finding = type.check_payload(msgspec.json.decode(data))
        except (EventError, msgspec.MsgspecError, UnicodeDecodeError, RecursionError, TypeError) as error:
            raise ValueError(f"the payload of {type.name}: {error}") from None
        if finding is not None:
            raise ValueError(f"the payload of {type.name}: {finding}")
        if self._loop is not None:
            with suppress(RuntimeError):  # the loop has ended
                self._loop.call_soon_threadsafe(self.emit_soon, principal, type, msgspec.Raw(data), key)

    def note_change(self, principal: str) -> None:
        """Tell pages that what a principal waits for has changed, or how its deliveries go."""
        for notify in self.on_change:
            notify(principal)

    async def read_page(
        self, wanted: EventFilter, after: Position | None, most: int, not_before: float = 0.0
    ) -> EventPage:
        """Return events after a position, as `EventRows.read_page`. Raises StateError."""
        return await self.store.transact(
            lambda connection: self.rows.read_page(connection, wanted, after, most, not_before),
            alone="events",
        )

    async def run_sweeps(self) -> None:
        """Drop what is too old, now and at intervals until cancelled."""
        while True:
            if self.store.has_flag(FLAG, ""):
                try:
                    await self.sweep()
                except StateError as error:
                    log.warning("old events are not dropped yet: %s", error)
            await asyncio.sleep(SWEEP_INTERVAL)

    async def sweep(self) -> None:
        """Drop what is too old, in many short transactions: others' work goes on between them. Raises StateError."""
        while await self.store.transact(self.rows.remove_expired):
            pass
        place: str | None = ""
        while place is not None:
            swept = await self.store.transact(partial(self.rows.sweep, after=place))
            await self._clear_flags(swept.dropped)
            place = swept.place

    async def forget(self, principal: str) -> None:
        """Drop all events, interests and subscriptions of a principal."""
        if self.has_interest(principal):
            await self.store.transact(lambda connection: self.rows.drop_log(connection, principal))
            await self._clear_flags([principal])

    async def close(self) -> None:
        """Wait a second at most for events to be recorded."""
        self._loop = None
        if self._work:
            await asyncio.wait(list(self._work), timeout=STOPPING)
        await self.writer.close(STOPPING)

    async def _clear_flags(self, principals: Sequence[str]) -> None:
        """Remove flags once nothing needs them: a missing one would lose events."""
        if principals:
            await self.store.transact(lambda connection: self.rows.clear_flags(connection, principals))

    def wake(self, principal: str, type: str) -> None:
        """Tell those who wait here that there is an event, perhaps of another replica."""
        for notify in self.on_news:
            notify(principal, type)

    def _announce(self, principal: str, type: str) -> None:
        self.wake(principal, type)
        if self.publish is not None:
            self.publish(principal, type)


async def _log_failure(work: Coroutine[Any, Any, None]) -> None:
    try:
        await work
    except (StateError, EventError) as error:
        log.warning("the end of subscriptions is not told: %s", error)


def _try_to_make(principal: str, type: EventType, key: str | None, payload: Any) -> Occurrence | None:
    """Return an occurrence, or None for a payload that is too large: what happens must not fail for it."""
    try:
        return make_occurrence(principal, type, key or os.urandom(16).hex(), payload)
    except EventError as error:
        log.warning("an event %s of %s is lost: %s", type.name, principal, error)
        return None


def make_occurrence(principal: str, type: EventType, key: str, payload: Any) -> Occurrence:
    """Return what happened, under an id that depends on nothing else. Raises EventError if the payload is too large."""
    data = encode_value(payload)
    if len(data) > MAX_PAYLOAD:
        raise EventError("InvalidParams", f"the payload of {type.name} has {len(data)} bytes, over {MAX_PAYLOAD}")
    digest = hashlib.sha256(encode_value([principal, type.name, key]))
    return Occurrence(principal, type.name, f"evt_{digest.hexdigest()[:32]}", data)


def make_test(principal: str, type: EventType, arguments: Mapping[str, Any]) -> Occurrence:
    """Return a test event for these arguments; its id shows what it is. Raises EventError if none fits the type."""
    occurrence = make_occurrence(principal, type, os.urandom(16).hex(), make_sample(type, arguments))
    return msgspec.structs.replace(occurrence, id=occurrence.id.replace("evt_", "evt_test_", 1))

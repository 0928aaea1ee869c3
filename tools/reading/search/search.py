"""Query all engines at once, within a deadline."""

import asyncio
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING

import msgspec

from toolgate.tools.api.concurrency.fair_queue import FairQueue
from toolgate.tools.api.context.spans import span
from toolgate.tools.reading.search.engine import Engine, EngineQuery
from toolgate.tools.reading.search.health import EngineAttempt, EngineHealth
from toolgate.tools.reading.search.html_engine import ResultReader
from toolgate.tools.reading.search.outcome import EngineOutcome
from toolgate.tools.reading.search.query import ask_engine, elapsed_ms, timeout_outcome

if TYPE_CHECKING:  # start-up of a worker
    from toolgate.tools.api.outbound.fetch import Web

DEADLINE = 6.0  # seconds; most engines answer within two
AT_ONCE = 16  # concurrent queries of one engine: more would be refused, at 2 MiB of answer each
IN_TIME = 0.75  # of a search's time: a later query could hardly be answered, and the engine would be blamed
LETTING_GO = 0.2  # seconds for cancelled queries to close their sockets
AGE = 120.0  # seconds; a model that asks again is served, and news is not too old
MAX_ANSWERS = 1_000  # single-engine answers of about 5 kB: some 90 searches

Key = tuple[str, str, str]  # principal, engine, query


class AnswerCache:
    """The latest answers, never failures, by principal, engine and query. By principal, since a fast answer would
    reveal another caller's query."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._answers: OrderedDict[Key, tuple[float, EngineOutcome]] = OrderedDict()

    def get(self, principal: str, engine: str, query: str) -> EngineOutcome | None:
        at, outcome = self._answers.get((principal, engine, query), (0.0, None))
        age = self._clock() - at
        if outcome is None or age > AGE:
            return None
        return msgspec.structs.replace(outcome, age=age, ms=0)

    def store(self, principal: str, query: str, outcome: EngineOutcome) -> None:
        if outcome.status not in ("ok", "empty"):
            return
        key = (principal, outcome.name, query)
        self._answers[key] = (self._clock(), outcome)
        self._answers.move_to_end(key)
        while len(self._answers) > MAX_ANSWERS:
            self._answers.popitem(last=False)

    def __len__(self) -> int:
        return len(self._answers)


class Tally(msgspec.Struct, eq=False):
    """The number of engines that have answered a search or are answering."""

    engines: int = 0


class PendingQuery(msgspec.Struct, eq=False):
    """A running query, and the searches of one caller that wait for it. `attempt` is set once it started. `latest`, by
    the clock, is the last time to start it."""

    key: Key
    question: EngineQuery
    searches: list[Tally] = msgspec.field(default_factory=list[Tally])
    attempt: EngineAttempt | None = None
    latest: float = 0.0
    running: "asyncio.Task[EngineOutcome] | None" = None

    @property
    def task(self) -> "asyncio.Task[EngineOutcome]":
        assert self.running is not None
        return self.running

    def count(self, change: int) -> None:
        for tally in self.searches:
            tally.engines += change


class Search:
    """Queries all engines, for all calls of one event loop. `create_reader` returns the reader of an engine's pages."""

    def __init__(
        self,
        web: "Web",
        create_reader: Callable[[Engine], ResultReader],
        engines: Sequence[Engine],
        *,
        deadline: float = DEADLINE,
        contact: str = "",
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.engines = list(engines)
        self.deadline = deadline
        self._web = web
        self._contact = contact
        self._clock = clock
        self._cache = AnswerCache(clock)
        self.health = {engine.name: EngineHealth(engine.name, clock) for engine in engines}
        self._queues = {engine.name: FairQueue(AT_ONCE, "questions") for engine in engines}
        self._readers = {engine.name: create_reader(engine) for engine in engines}
        self._under_way: dict[Key, PendingQuery] = {}

    @property
    def depth(self) -> tuple[int, int]:
        """The number of running and of waiting queries."""
        turns = self._queues.values()
        return sum(each.running for each in turns), sum(each.waiting for each in turns)

    async def ask(self, principal: str, query: str, limit: float) -> list[EngineOutcome]:
        """Return each engine's outcome for `query`, in the table's order, within `limit` seconds and the deadline."""
        start = time.monotonic()
        patience = min(self.deadline, limit)
        latest = self._clock() + IN_TIME * patience
        outcomes: dict[str, EngineOutcome] = {}
        joined: dict[str, PendingQuery] = {}
        tally = Tally()
        for engine in self.engines:
            outcome = self._cache.get(principal, engine.name, query) or self.health[engine.name].skip_outcome()
            if outcome is None:
                joined[engine.name] = self._join_query((principal, engine.name, query), engine, tally, latest)
            else:
                outcomes[engine.name] = outcome
                tally.engines += outcome.status == "ok"
        try:
            if joined:
                tasks = [query.task for query in joined.values()]
                await asyncio.wait(tasks, timeout=patience)
        finally:
            missed = {name: asking for name, asking in joined.items() if not asking.task.done()}
            abandoned = self._leave_queries(joined.values(), tally)
            if abandoned:
                await asyncio.wait([query.task for query in abandoned], timeout=LETTING_GO)
        for name, asking in joined.items():
            if name in missed:
                outcomes[name] = self._missed_outcome(asking, asking in abandoned, elapsed_ms(start))
            else:
                outcomes[name] = asking.task.result()
        return [outcomes[engine.name] for engine in self.engines]

    def _join_query(self, key: Key, engine: Engine, tally: Tally, latest: float) -> PendingQuery:
        """Return the running query for this key, or a new one: equal searches of one caller share it."""
        asking = self._under_way.get(key)
        if asking is None:
            asking = self._under_way[key] = PendingQuery(key, EngineQuery(engine, key[2], key[0]))
            asking.running = asyncio.ensure_future(self._run_query(asking))
            asking.task.add_done_callback(lambda _: self._forget_query(asking))
        asking.searches.append(tally)
        asking.latest = max(asking.latest, latest)
        tally.engines += asking.attempt is not None
        return asking

    def _leave_queries(self, joined: Iterable[PendingQuery], tally: Tally) -> list[PendingQuery]:
        """Remove a search from its queries. Return the queries that are left without one; they are cancelled."""
        abandoned = []
        for asking in joined:
            asking.searches.remove(tally)
            if not asking.searches and not asking.task.done():
                asking.task.cancel()
                self._forget_query(asking)
                abandoned.append(asking)
        return abandoned

    def _forget_query(self, asking: PendingQuery) -> None:
        if self._under_way.get(asking.key) is asking:
            del self._under_way[asking.key]

    async def _run_query(self, asking: PendingQuery) -> EngineOutcome:
        who, name, query = asking.key
        health = self.health[name]
        first = asking.searches[0]
        # Each of a caller's searches gets some engines before any gets all
        async with self._queues[name].slot(who, rank=lambda: first.engines):
            skipped_outcome = health.skip_outcome()  # check again: other queries finished during the wait
            if skipped_outcome is not None:
                return skipped_outcome
            if self._clock() > asking.latest:
                return timeout_outcome(asking.question, "by the deadline")
            attempt = asking.attempt = health.begin()
            asking.count(1)
            try:
                with span(f"search {name}"):
                    outcome = await ask_engine(self._web, self._readers[name], asking.question, self._contact)
            except BaseException:
                health.cancel(attempt)
                raise
            health.record(outcome, attempt)
            self._cache.store(who, query, outcome)
            asking.count(-1 if outcome.status != "ok" else 0)
            return outcome

    def _missed_outcome(self, asking: PendingQuery, abandoned: bool, ms: int) -> EngineOutcome:
        """Return the outcome of an engine that has not answered by the deadline."""
        outcome = msgspec.structs.replace(timeout_outcome(asking.question, "by the deadline"), ms=ms)
        if abandoned and asking.attempt is not None:
            self.health[asking.question.engine.name].record(outcome, asking.attempt)
        return outcome

"""Asks all engines at once, and remembers how they are. Knows deadlines; knows nothing of formats or ranking."""

import asyncio
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import msgspec

from toolgate.tools.api.spans import step
from toolgate.tools.fair_queue import Turns
from toolgate.tools.search.cache import Recent
from toolgate.tools.search.ddgs_client import Reader
from toolgate.tools.search.engine import Engine
from toolgate.tools.search.health import Asked, Health
from toolgate.tools.search.query import Outcome, Question, ask, late, since

if TYPE_CHECKING:
    from toolgate.tools.web.fetch import Web

DEADLINE = 6.0  # seconds; a model waits, and most engines answer within two
AT_ONCE = 16  # questions to one engine: more would get us refused; and 2 MiB of answer each
IN_TIME = 0.75  # of a search's time: an engine whose turn comes later could hardly answer, and would be blamed for that
LETTING_GO = 0.2  # seconds for what is cancelled to close its sockets; nothing waits for a slow one

Key = tuple[str, str, str]  # who asks, which engine, what


@dataclass(slots=True, eq=False)
class Tally:
    """How many engines a search has heard from, or are at it."""

    engines: int = 0


@dataclass(slots=True, eq=False)
class Asking:
    """A question under way, and the searches of one caller that wait for its answer. `begun`: its turn has come.
    `latest`: when it is too late to put it, by the clock."""

    key: Key
    question: Question
    searches: list[Tally] = field(default_factory=list)
    begun: Asked | None = None
    latest: float = 0.0
    task: "asyncio.Task[Outcome]" = field(init=False)

    def count(self, change: int) -> None:
        for tally in self.searches:
            tally.engines += change


class Search:
    """The engines, shared by all calls of one event loop."""

    def __init__(
        self,
        web: "Web",
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
        self._recent = Recent(clock)
        self.health = {engine.name: Health(engine.name, clock) for engine in engines}
        self._turns = {engine.name: Turns(AT_ONCE, "questions") for engine in engines}
        self._readers = {one.name: Reader(one.name, web.workers, one.seconds) for one in engines}
        self._under_way: dict[Key, Asking] = {}

    @property
    def depth(self) -> tuple[int, int]:
        """How many questions have their turn, and how many wait for it."""
        turns = self._turns.values()
        return sum(each.running for each in turns), sum(each.waiting for each in turns)

    async def ask(self, who: str, query: str, limit: float) -> list[Outcome]:
        """How each engine did with `query`, in the table's order, after at most `limit` seconds and the deadline."""
        start = time.monotonic()
        patience = min(self.deadline, limit)
        latest = self._clock() + IN_TIME * patience
        outcomes: dict[str, Outcome] = {}
        joined: dict[str, Asking] = {}
        tally = Tally()
        for engine in self.engines:
            outcome = self._recent.get(who, engine.name, query) or self.health[engine.name].held()
            if outcome is None:
                joined[engine.name] = self._joined((who, engine.name, query), engine, tally, latest)
            else:
                outcomes[engine.name] = outcome
                tally.engines += outcome.status == "ok"
        try:
            if joined:
                tasks = [asking.task for asking in joined.values()]
                await asyncio.wait(tasks, timeout=patience)
        finally:
            missed = {name: asking for name, asking in joined.items() if not asking.task.done()}
            abandoned = self._left(joined.values(), tally)
            await _let_go([asking.task for asking in abandoned])
        for name, asking in joined.items():
            if name in missed:
                outcomes[name] = self._missed(asking, asking in abandoned, since(start))
            else:
                outcomes[name] = asking.task.result()
        return [outcomes[engine.name] for engine in self.engines]

    def _joined(self, key: Key, engine: Engine, tally: Tally, latest: float) -> Asking:
        """The question, which is put once for all that ask it now: by who asks, as what is remembered."""
        asking = self._under_way.get(key)
        if asking is None:
            asking = self._under_way[key] = Asking(key, Question(engine, key[2]))
            asking.task = asyncio.ensure_future(self._asked(asking))
            asking.task.add_done_callback(lambda _: self._ended(asking))
        asking.searches.append(tally)
        asking.latest = max(asking.latest, latest)
        tally.engines += asking.begun is not None
        return asking

    def _left(self, joined: Iterable[Asking], tally: Tally) -> list[Asking]:
        """A search waits no more. Those questions that nobody waits for are given up, and returned."""
        abandoned = []
        for asking in joined:
            asking.searches.remove(tally)
            if not asking.searches and not asking.task.done():
                asking.task.cancel()
                self._ended(asking)
                abandoned.append(asking)
        return abandoned

    def _ended(self, asking: Asking) -> None:
        if self._under_way.get(asking.key) is asking:
            del self._under_way[asking.key]

    async def _asked(self, asking: Asking) -> Outcome:
        who, name, query = asking.key
        health = self.health[name]
        first = asking.searches[0]
        # Of one caller's searches each gets something before any gets all
        async with self._turns[name].turn(who, rank=lambda: first.engines):
            held = health.held()  # anew: others have learned something while this one waited
            if held is not None:
                return held
            if self._clock() > asking.latest:
                return late(asking.question, "by the deadline")
            asked = asking.begun = health.begin()
            asking.count(1)
            try:
                with step(f"search {name}"):
                    outcome = await ask(self._web, self._readers[name], asking.question, self._contact)
            except BaseException:
                health.forget(asked)
                raise
            health.learn(outcome, asked)
            self._recent.put(who, query, outcome)
            asking.count(-1 if outcome.status != "ok" else 0)
            return outcome

    def _missed(self, asking: Asking, abandoned: bool, ms: int) -> Outcome:
        """What is told of an engine that has not answered by the deadline."""
        outcome = msgspec.structs.replace(late(asking.question, "by the deadline"), ms=ms)
        if abandoned and asking.begun is not None:
            self.health[asking.question.engine.name].learn(outcome, asking.begun)
        return outcome


async def _let_go(tasks: list["asyncio.Task[Outcome]"]) -> None:
    if tasks:
        await asyncio.wait(tasks, timeout=LETTING_GO)

"""Asks all engines at once, and remembers how they are. Knows deadlines; knows nothing of formats or ranking."""

import asyncio
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import msgspec

from toolgate.tools.search.asking import Outcome, ask, late, since
from toolgate.tools.search.engine import Engine
from toolgate.tools.search.health import Asked, Health
from toolgate.tools.search.recent import Recent

if TYPE_CHECKING:
    from toolgate.tools.web import Web

DEADLINE = 6.0  # seconds; a model waits, and most engines answer within two
AT_ONCE = 16  # questions to one engine: more would get us refused; and 2 MiB of answer each
LETTING_GO = 0.2  # seconds for what is cancelled to close its sockets; nothing waits for a slow one


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
        self._recent = Recent(clock)
        self._health = {engine.name: Health(engine.name, clock) for engine in engines}
        self._turns = {engine.name: asyncio.Semaphore(AT_ONCE) for engine in engines}

    async def ask(self, who: str, query: str, limit: float) -> list[Outcome]:
        """How each engine did with `query`, in the table's order, after at most `limit` seconds and the deadline."""
        start = time.monotonic()
        outcomes: dict[str, Outcome] = {}
        asked: dict[str, asyncio.Task[Outcome]] = {}
        begun: dict[str, Asked] = {}  # by engine: those whose turn has come
        for engine in self.engines:
            outcome = self._recent.get(who, engine.name, query) or self._health[engine.name].held()
            if outcome is None:
                asked[engine.name] = asyncio.ensure_future(self._asked(engine, query, begun))
            else:
                outcomes[engine.name] = outcome
        try:
            if asked:
                await asyncio.wait(asked.values(), timeout=min(self.deadline, limit))
        finally:
            missing = {name: task for name, task in asked.items() if not task.done()}
            await _let_go(list(missing.values()))
        for name, task in asked.items():
            outcome = self._missed(name, begun.get(name), since(start)) if name in missing else task.result()
            self._recent.put(who, query, outcome)
            outcomes[name] = outcome
        return [outcomes[engine.name] for engine in self.engines]

    async def _asked(self, engine: Engine, query: str, begun: dict[str, Asked]) -> Outcome:
        health = self._health[engine.name]
        async with self._turns[engine.name]:
            held = health.held()  # anew: others have learned something while this one waited
            if held is not None:
                return held
            asked = begun[engine.name] = health.begin()
            try:
                outcome = await ask(self._web, engine, query, self._contact)
            except BaseException:
                health.forget(asked)
                raise
            health.learn(outcome, asked)
            return outcome

    def _missed(self, name: str, asked: Asked | None, ms: int) -> Outcome:
        """What is told of an engine that has not answered by the deadline."""
        if asked is None:  # nothing of it is the engine's fault
            return msgspec.structs.replace(late(name, "too many searches at once: its turn did not come"), ms=ms)
        outcome = msgspec.structs.replace(late(name, "no answer by the deadline"), ms=ms)
        self._health[name].learn(outcome, asked)
        return outcome


async def _let_go(tasks: list["asyncio.Task[Outcome]"]) -> None:
    for task in tasks:
        task.cancel()
    if tasks:
        await asyncio.wait(tasks, timeout=LETTING_GO)

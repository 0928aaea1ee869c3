"""Cache the answers of engines for a short while."""

from collections import OrderedDict
from collections.abc import Callable

import msgspec

from toolgate.tools.search.query import EngineOutcome

AGE = 120.0  # seconds; long enough for a model that asks again, short enough for news
MAX_KEPT = 1_000  # answers of one engine each, of about 5 kB: some 90 searches


class AnswerCache:
    """Answers by who asked, which engine and what; never failures. By who asked, since a quick answer would tell one
    caller what another was looking for."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._kept: OrderedDict[tuple[str, str, str], tuple[float, EngineOutcome]] = OrderedDict()

    def get(self, principal: str, engine: str, query: str) -> EngineOutcome | None:
        at, outcome = self._kept.get((principal, engine, query), (0.0, None))
        age = self._clock() - at
        if outcome is None or age > AGE:
            return None
        return msgspec.structs.replace(outcome, age=age, ms=0)

    def store(self, principal: str, query: str, outcome: EngineOutcome) -> None:
        if outcome.status not in ("ok", "empty"):
            return
        key = (principal, outcome.name, query)
        self._kept[key] = (self._clock(), outcome)
        self._kept.move_to_end(key)
        while len(self._kept) > MAX_KEPT:
            self._kept.popitem(last=False)

    def __len__(self) -> int:
        return len(self._kept)

"""Hold keys with an end in memory. Ended values go when they are read, or when the dict has doubled since."""

import time
from collections.abc import Callable, Mapping, Sequence

from toolgate.server.base.bus.bus import KeyLimit, Reservation, check_data, check_name, check_seconds

MIN_SWEEP = 1_024  # values, below which ended ones may stay
MAX_COUNTERS = 20_000  # keys of one limiter of guesses, six for each: the key of all guessers slows more of them


class MemoryKeys:
    """The keys of one process. `now` is in seconds and never set back. Of more than `most` values half go,
    those that end first."""

    def __init__(self, now: Callable[[], float] = time.monotonic, most: int | None = None) -> None:
        self._now = now
        self._most = most
        self._values: dict[str, tuple[bytes, float]] = {}  # value, end
        self._sweep_at = MIN_SWEEP

    async def get(self, key: str) -> bytes | None:
        return self._find(key)

    async def get_many(self, keys: Sequence[str], touch: Mapping[str, float] | None = None) -> list[bytes | None]:
        for key, seconds in (touch or {}).items():
            await self.touch(key, seconds)
        return [self._find(key) for key in keys]

    async def set(self, key: str, value: bytes, seconds: float) -> None:
        self._set(key, value, seconds)

    async def set_if_absent(self, key: str, value: bytes, seconds: float) -> bool:
        if self._find(key) is not None:
            return False
        self._set(key, value, seconds)
        return True

    async def replace(self, key: str, old: bytes, new: bytes, seconds: float) -> bool:
        if self._find(key) != old:
            return False
        self._set(key, new, seconds)
        return True

    async def take(self, key: str) -> bytes | None:
        value = self._find(key)
        self._values.pop(key, None)
        return value

    async def delete(self, *keys: str) -> int:
        return [await self.take(key) is not None for key in keys].count(True)

    async def touch(self, key: str, seconds: float) -> bool:
        value = self._find(key)
        if value is None:
            return False
        self._set(key, value, seconds)
        return True

    async def increment(self, key: str, seconds: float, by: int = 1) -> int:
        check_name(key)
        check_seconds(seconds)
        return self._add(key, seconds, by)

    async def count(self, limits: Sequence[KeyLimit]) -> float:
        reserved = await self.reserve(limits, [1] * len(limits))
        return max((each.seconds for each in reserved if not each.granted), default=0.0)

    async def reserve(self, limits: Sequence[KeyLimit], counts: Sequence[int]) -> list[Reservation]:
        for limit in limits:
            check_name(limit.key)
            check_seconds(limit.seconds)
        room = [limit.most - int(self._find(limit.key) or 0) for limit in limits]
        if min(room, default=1) < 1:
            return [
                Reservation(0, self._seconds_left(limit) if left < 1 else 0.0)
                for limit, left in zip(limits, room, strict=True)
            ]
        granted = [min(*each) for each in zip(room, counts, strict=True)]
        for limit, count in zip(limits, granted, strict=True):
            self._add(limit.key, limit.seconds, count)
        return [Reservation(count, self._seconds_left(limit)) for limit, count in zip(limits, granted, strict=True)]

    def __len__(self) -> int:
        """Return how many values are in memory, ended ones included."""
        return len(self._values)

    def _find(self, key: str) -> bytes | None:
        entry = self._values.get(key)
        if entry is None:
            check_name(key)
            return None
        if entry[1] <= self._now():
            del self._values[key]
            return None
        return entry[0]

    def _set(self, key: str, value: bytes, seconds: float) -> None:
        check_name(key)
        check_data(value)
        check_seconds(seconds)
        self._values[key] = (value, self._now() + seconds)
        if len(self._values) > self._sweep_at:
            self._sweep()
        if self._most is not None and len(self._values) > self._most:
            by_end = sorted(self._values.items(), key=lambda item: item[1][1])
            self._values = dict(by_end[-(self._most // 2) :])

    def _add(self, key: str, seconds: float, by: int) -> int:
        value = self._find(key)
        if value is None:
            self._set(key, b"%d" % by, seconds)
            return by
        total = int(value) + by
        self._values[key] = (b"%d" % total, self._values[key][1])
        return total

    def _seconds_left(self, limit: KeyLimit) -> float:
        return self._values[limit.key][1] - self._now() if limit.key in self._values else limit.seconds

    def _sweep(self) -> None:
        now = self._now()
        self._values = {key: entry for key, entry in self._values.items() if entry[1] > now}
        self._sweep_at = max(MIN_SWEEP, 2 * len(self._values))

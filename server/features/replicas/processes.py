"""Tell which replicas are alive: by their leases on the bus, and by the locks they hold in PostgreSQL.

A lease shows a frozen process within seconds. The lock of a killed one is free at once; then the bus decides.
"""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Iterable

from toolgate.server.base.bus.bus import BusUnreachableError, Replica
from toolgate.server.base.errors import StateError
from toolgate.server.state.live_processes import ReplicaLocks

INTERVAL = 1.0  # seconds between two looks: with the lease of 3, a death is seen within 5
RECENT = 1_200.0  # seconds: as long as anything waits that a dead replica left on the bus

log = logging.getLogger(__name__)


class ReplicaProcesses:
    """The replicas of one bus, as `LiveProcesses`. `locks` is None without PostgreSQL. `on_living` is called with those
    alive at each look."""

    def __init__(
        self,
        replica: Replica,
        locks: ReplicaLocks | None = None,
        on_living: Callable[[frozenset[str]], None] = lambda names: None,
    ) -> None:
        self._replica = replica
        self._locks = locks
        self._on_living = on_living
        self._watched = set[str]()  # all that were alive when last looked at: at their death their work is taken over
        self._seen: dict[str, float] = {}  # replica → when it was last seen with a lease

    def own_name(self) -> str:
        return self._replica.name

    async def find_dead(self, names: Iterable[str]) -> frozenset[str]:
        """Return those that are known to be dead. While Redis is away that is not known of any.

        `follow` looks at the others from now on. Redis may list none of them: it lost its data, or they ended since."""
        others = [name for name in names if name != self._replica.name]
        try:
            alive = await asyncio.gather(*map(self._replica.is_alive, others))
            living = [name for name, lives in zip(others, alive, strict=True) if lives]
            released = await self._locks.find_released(living) if self._locks is not None and living else ()
            ended = [name for name in released if await self._replica.find_ended(name)]
        except BusUnreachableError as error:
            log.warning("it is not known which replicas live: %s", error)
            self._watch(others)
            return frozenset()
        self._watch(living)
        return frozenset(others).difference(living).union(ended)

    def recent_names(self) -> frozenset[str]:
        """Return the replicas that hold a lease, or did within the last `RECENT` seconds."""
        return frozenset(self._seen)

    def close(self) -> None:
        """Do nothing: the bus ends the lease when it is closed, after what this process has to write."""

    async def follow(self, on_death: Callable[[], Awaitable[None]]) -> None:
        """Hold the lock, and call `on_death` each time that replicas were found dead, until cancelled."""
        async with asyncio.TaskGroup() as group:
            if self._locks is not None:
                group.create_task(self._locks.hold())
            group.create_task(self._look_for_dead(on_death))

    async def _look_for_dead(self, on_death: Callable[[], Awaitable[None]]) -> None:
        log.debug("this is replica %s", self._replica.name)
        leased = set[str]()
        while True:
            try:
                names = await self._replica.list_names()
                self._note_seen(names)
                leased.update(names)
                self._watch([*names, *self._replica.list_earlier()])
                dead = await self.find_dead([*self._watched])
                self._on_living(frozenset(leased - dead))
                if dead:
                    log.info("found dead: replica %s", ", ".join(sorted(dead)))
                    await on_death()
                leased -= dead
                self._watched -= dead  # else the next turn takes over their work
            except BusUnreachableError:
                pass  # the bus logs it
            except StateError as error:
                log.warning("the work of dead replicas waits: %s", error)
            except Exception:
                log.exception("the work of dead replicas was not taken over")
            await asyncio.sleep(INTERVAL)

    def _watch(self, names: Iterable[str]) -> None:
        new = frozenset(names) - self._watched - {self._replica.name}
        self._watched |= new
        if new:
            log.debug("watching replica %s", ", ".join(sorted(new)))

    def _note_seen(self, names: Iterable[str]) -> None:
        now = time.monotonic()
        seen = self._seen | dict.fromkeys(names, now)
        self._seen = {name: at for name, at in seen.items() if now - at < RECENT}

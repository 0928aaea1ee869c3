"""An outbox in memory: the deliveries of each subscription in order, and what the queue noted."""

import asyncio
from collections import defaultdict, deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from msgspec.structs import replace

from tests.server.features.events.webhooks.fake_receiver import delivery
from toolgate.server.features.events.webhooks.delivery import Delivery, Disposition, Outcome
from toolgate.server.features.events.webhooks.delivery_queue import DeliveryQueue
from toolgate.server.features.events.webhooks.outbox import PendingSubscription


@dataclass
class FakeOutbox:
    lines: defaultdict[str, deque[Delivery]] = field(default_factory=lambda: defaultdict(deque))
    due: dict[str, float] = field(default_factory=dict)
    noted: list[tuple[str, Outcome, float | None]] = field(default_factory=list)
    reads: list[Sequence[str]] = field(default_factory=list)
    changed: asyncio.Event = field(default_factory=asyncio.Event)
    broken: int = 0  # so many calls fail

    def put(self, id: str, principal: str = "p", url: str = "https://hooks.example/", subscription: str = "") -> None:
        name = subscription or f"{principal} {url}"
        self.lines[name].append(delivery(url, id, name, principal=principal))

    def pending(self, subscription: str) -> PendingSubscription:
        first = self.lines[subscription][0]
        return PendingSubscription(subscription, first.principal, first.url, self.due.get(subscription, 0.0))

    def put_and_add(self, queue: DeliveryQueue, *args: str, **names: str) -> None:
        self.put(*args, **names)
        subscription = next(reversed(self.lines)) if "subscription" not in names else names["subscription"]
        queue.add(self.pending(subscription))

    async def list_pending(self) -> Iterable[PendingSubscription]:
        return [self.pending(name) for name, line in self.lines.items() if line]

    async def take_due(self, subscriptions: Sequence[str]) -> Sequence[Delivery]:
        await asyncio.sleep(0)
        self._fail()
        self.reads.append(subscriptions)
        return [self.lines[name][0] for name in subscriptions if self.lines[name]]

    async def note_outcome(self, delivery: Delivery, outcome: Outcome, retry_at: float | None) -> bool:
        await asyncio.sleep(0)
        self._fail()
        line = self.lines[delivery.subscription]
        assert line[0].id == delivery.id
        if outcome.disposition is Disposition.RETRY:
            line[0] = replace(delivery, attempts=delivery.attempts + 1)
        else:
            line.popleft()
        self.noted.append((delivery.id, outcome, retry_at))
        self.changed.set()
        return bool(line)

    async def wait_for(self, many: int) -> None:
        """Wait until the ends of so many attempts were noted."""
        while len(self.noted) < many:
            self.changed.clear()
            await self.changed.wait()

    def _fail(self) -> None:
        if self.broken:
            self.broken -= 1
            raise OSError("the database is broken")

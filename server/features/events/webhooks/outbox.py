"""Define what the queue of deliveries needs from the store of events."""

from collections.abc import Iterable, Sequence
from typing import Protocol
from urllib.parse import urlsplit

import msgspec

from toolgate.server.features.events.webhooks.delivery import Delivery, Outcome


class PendingSubscription(msgspec.Struct, frozen=True):
    """A subscription with undelivered deliveries, the first of which is due at `due_at`, in seconds since 1970."""

    subscription: str
    principal: str
    url: str
    due_at: float = 0.0

    @property
    def host(self) -> str:
        return (urlsplit(self.url).hostname or "").removesuffix(".")


class Outbox(Protocol):
    """The store of deliveries. What it does is durable when it returns. A StateError or any other exception makes the
    queue try again later."""

    async def list_pending(self) -> Iterable[PendingSubscription]:
        """Return every live subscription that has undelivered deliveries. Called once, at the start."""
        ...

    async def take_due(self, subscriptions: Sequence[str]) -> Sequence[Delivery]:
        """Return the oldest undelivered delivery of each of these, with the secrets that are valid now.

        Leave out a subscription that has none, has ended, is past its time to live or may no longer see the event. It
        is then forgotten until it is added again. Changes nothing.
        """
        ...

    async def note_outcome(self, delivery: Delivery, outcome: Outcome, retry_at: float | None) -> bool:
        """Store how an attempt ended, and return whether the subscription has further undelivered deliveries.

        `retry_at`: when the delivery is due again, in seconds since 1970; None if it was acknowledged or given up.
        """
        ...

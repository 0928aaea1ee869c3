"""Define a request to subscribe, after its check, and the limits of subscriptions."""

import hashlib
from typing import TYPE_CHECKING

import msgspec

from toolgate.server.features.events.log.rows import EventFilter, Position
from toolgate.server.features.events.webhooks.signature import WebhookSecret
from toolgate.server.protocol.messages import encode_value

if TYPE_CHECKING:
    from toolgate.server.base.principals.principal import GrantKey


class SubscriptionLimits(msgspec.Struct, frozen=True):
    """The limits of subscriptions: `count` of a principal; seconds that one lives, unless asked, and at most."""

    count: int = 100
    usual: float = 86_400.0
    longest: float = 7 * 86_400.0


class SubscriptionRequest(msgspec.Struct, frozen=True):
    """A request to subscribe, checked. `ttl`: seconds, or None for the usual time; inf for no end. `until`: when the
    caller's access ends, where nothing tells of its revocation."""

    wanted: EventFilter
    owner: str
    right: "GrantKey | None"
    url: str
    secret: WebhookSecret
    after: Position | None
    not_before: float
    ttl: float | None
    until: float | None

    @property
    def id(self) -> str:
        return make_subscription_id(self.owner, self.url, self.wanted)


def make_subscription_id(owner: str, url: str, wanted: EventFilter) -> str:
    """Return the id of a subscription: the same for the same client, URL, type and arguments, whenever it is asked."""
    digest = hashlib.sha256(encode_value([owner, wanted.principal, url, wanted.type, wanted.arguments]))
    return f"sub_{digest.hexdigest()[:32]}"

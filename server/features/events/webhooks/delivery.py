"""Define what is delivered to a webhook, and how an attempt to deliver it can end."""

import enum
import secrets
from typing import Literal

import msgspec

from toolgate.server.features.events.webhooks.signature import WebhookSecret

MAX_BODY = 256 * 1024  # bytes; receivers refuse more
MAX_ID = 256  # characters

Failure = Literal["connection_refused", "timeout", "tls_error", "http_4xx", "http_5xx"]  # words of `lastError`


class Disposition(enum.StrEnum):
    ACKNOWLEDGED = "acknowledged"
    FINAL = "final"  # this delivery is never sent again
    RETRY = "retry"


class Delivery(msgspec.Struct, frozen=True):
    """A message for the endpoint of one subscription.

    - `id`: the header `webhook-id`, the same at each attempt. Visible ASCII.
    - `body`: JSON, at most `MAX_BODY` bytes.
    - `secrets`: the newest first; two during the grace of a rotation.
    - `attempts`: how many have failed. `created_at`: when the event happened, in seconds since 1970.
    """

    id: str
    subscription: str
    principal: str
    url: str
    body: bytes
    secrets: tuple[WebhookSecret, ...]
    attempts: int
    created_at: float

    def __repr__(self) -> str:  # without the body
        return f"Delivery({self.id!r}, {self.subscription!r}, {self.principal!r}, {self.url!r})"

    @property
    def is_valid(self) -> bool:
        """Return whether it can be sent at all: nothing is sent without a signature."""
        is_named = _is_header_value(self.id) and _is_header_value(self.subscription)
        return is_named and len(self.body) <= MAX_BODY and bool(self.secrets)


class Outcome(msgspec.Struct, frozen=True):
    """How an attempt ended. `error`: None if acknowledged. `retry_after`: the seconds the receiver asked for, bounded.
    `is_soon`: the receiver is not ready yet (425, 503)."""

    disposition: Disposition
    error: Failure | None = None
    retry_after: float = 0.0
    is_soon: bool = False


def create_message_id(kind: str) -> str:
    """Return a new `webhook-id` for a control message, such as "gap" or "terminated"."""
    return f"msg_{kind}_{secrets.token_hex(16)}"


def _is_header_value(text: str) -> bool:
    return 0 < len(text) <= MAX_ID and text.isascii() and text.isprintable() and " " not in text

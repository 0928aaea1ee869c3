"""Format what happened for the wire."""

from datetime import UTC, datetime
from typing import Any

import msgspec

from toolgate.server.features.events.log.rows import LoggedEvent


def format_event(found: LoggedEvent, cursor: str | None = None) -> dict[str, Any]:
    """Return an event: with its cursor by stream and webhook, without one by poll."""
    spelled: dict[str, Any] = {
        "eventId": found.id,
        "name": found.type,
        "timestamp": format_time(found.happened_at),
        "data": msgspec.Raw(found.data),
    }
    if cursor is not None:
        spelled["cursor"] = cursor
    return spelled


def format_time(seconds: float) -> str:
    """Return the time in ISO 8601, UTC."""
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")

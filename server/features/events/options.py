"""Declare the options of events. Imported at each start: light."""

from toolgate.server.config.option import Option
from toolgate.server.config.types import above_zero
from toolgate.tools.workspace import limits

OPTIONS = {
    "Events": (
        Option(
            "event-age",
            "how long events can be replayed, and an idle poller is remembered (default 24h)",
            above_zero(limits.parse_duration),
            86_400,
            "TIME",
        ),
        Option(
            "event-count",
            "events stored for each principal; the oldest make room (default 20000)",
            above_zero(limits.parse_count),
            20_000,
            "NUMBER",
        ),
        Option(
            "event-size",
            "bytes of events stored for each principal, such as 16M; the oldest make room (default 16M)",
            above_zero(limits.parse_size),
            16 * 2**20,
            "SIZE",
        ),
        Option(
            "webhook-age",
            "longest life of a subscription by webhook, unless its client refreshes it (default 7d)",
            above_zero(limits.parse_duration),
            7 * 86_400,
            "TIME",
            is_http_only=True,
        ),
        Option(
            "webhook-count",
            "subscriptions by webhook for each principal (default 100)",
            above_zero(limits.parse_count),
            100,
            "NUMBER",
            is_http_only=True,
        ),
    ),
}

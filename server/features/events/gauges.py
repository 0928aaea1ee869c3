"""List what is read of webhooks at each scrape."""

from toolgate.server.base.reports.metric_rows import MetricRow, by_key, counter, gauge
from toolgate.server.features.events.delivery.subscriptions import EventSubscriptions


def webhook_rows(subscriptions: EventSubscriptions) -> list[MetricRow]:
    """Return the rows of events by webhook."""
    queue, verifier = subscriptions.queue, subscriptions.verifier
    counters = queue.counters
    return [
        gauge("toolgate_webhook_subscriptions", "Subscriptions by webhook.", lambda: [((), len(subscriptions))]),
        gauge(
            "toolgate_webhook_subscriptions_waiting",
            "Subscriptions with a delivery that is not acknowledged.",
            lambda: [((), queue.pending)],
        ),
        counter(
            "toolgate_webhook_deliveries",
            "Deliveries that ended.",
            lambda: [(("acknowledged",), counters.delivered), (("refused",), counters.abandoned)],
            "result",
        ),
        counter("toolgate_webhook_failures", "Failed attempts.", lambda: by_key(counters.failures), "reason"),
        counter(
            "toolgate_webhook_lag_seconds",
            "Time from events to their acknowledgement, summed up.",
            lambda: [((), counters.lag)],
        ),
        counter(
            "toolgate_webhook_challenges",
            "Challenges of endpoints.",
            lambda: [(("verified",), verifier.verified), *by_key(verifier.failures)],
            "result",
        ),
    ]

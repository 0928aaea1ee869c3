"""Serve `/metrics`, with a token where more than this machine is served."""

from toolgate.server.config.load import Config
from toolgate.server.features.telemetry.metrics import CONTENT_TYPE
from toolgate.server.features.telemetry.metrics.collector import Metrics
from toolgate.server.state.keys.token_file import ensure_token, read_token
from toolgate.transports.http.requests.documents import MetricsEndpoint


def open_document(config: Config, metrics: Metrics) -> MetricsEndpoint:
    """Return what answers a scrape. Raises UsageError."""
    return MetricsEndpoint(metrics.render, CONTENT_TYPE, choose_token(config))


def choose_token(config: Config) -> str | None:
    """Return what `/metrics` takes, where more than this machine is served, or the operator wants it."""
    if not config.is_public and config.metrics_token is None:
        return None
    return read_token(config.metrics_token) if config.metrics_token else ensure_token(config.state / "keys" / "metrics")

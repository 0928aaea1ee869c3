"""Serve `/metrics`, with a token where more than this machine is served."""

import hmac
from collections.abc import Callable, Mapping
from hashlib import sha256

from toolgate.server.base.http.head import format_lines
from toolgate.server.config.load import Config
from toolgate.server.features.telemetry.metrics import CONTENT_TYPE
from toolgate.server.features.telemetry.metrics.collector import Metrics
from toolgate.server.state.keys.token_file import ensure_token, read_token
from toolgate.transports.http.requests.documents import READING
from toolgate.transports.http.wire.request import HttpRequest, WholeResponse, refuse

CHALLENGE = (b"www-authenticate", b'Bearer realm="metrics"')
NO_STORE = (b"cache-control", b"no-store")


class MetricsEndpoint:
    """Serves `/metrics`; `render()` returns its body. Without a `token` any client may read it."""

    def __init__(self, render: Callable[[], bytes], content_type: str, token: str | None) -> None:
        self._render = render
        self._content_type = content_type.encode()
        self._token = sha256(token.encode()).digest() if token is not None else None

    def __call__(self, request: HttpRequest) -> WholeResponse:
        if request.head.method not in READING:
            return refuse(405, "the method must be GET or HEAD", [(b"allow", b"GET, HEAD")])
        if not self._is_authorized(request.headers):
            return refuse(401, "this needs the metrics token", [CHALLENGE, NO_STORE])
        return WholeResponse(200, format_lines([(b"content-type", self._content_type), NO_STORE]), self._render())

    def _is_authorized(self, headers: Mapping[bytes, bytes]) -> bool:
        if self._token is None:
            return True
        kind, _, token = headers.get(b"authorization", b"").partition(b" ")
        return kind.lower() == b"bearer" and hmac.compare_digest(sha256(token.strip(b" ")).digest(), self._token)


def open_document(config: Config, metrics: Metrics) -> MetricsEndpoint:
    """Return what answers a scrape. Raises UsageError."""
    return MetricsEndpoint(metrics.render, CONTENT_TYPE, choose_token(config))


def choose_token(config: Config) -> str | None:
    """Return what `/metrics` takes, where more than this machine is served, or the operator wants it."""
    if not config.is_public and config.metrics_token is None:
        return None
    return read_token(config.metrics_token) if config.metrics_token else ensure_token(config.state / "keys" / "metrics")

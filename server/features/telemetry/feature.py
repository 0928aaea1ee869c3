"""Plug the audit log, metrics and traces into the server. What is off is not imported."""

import asyncio
import contextlib
import logging
from collections.abc import AsyncGenerator, Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from toolgate.server.app.host import AppHost
from toolgate.server.base.errors import UsageError
from toolgate.server.state.keys import check as key_check

if TYPE_CHECKING:
    from toolgate.server.base.reports.http_gauges import HttpGauges
    from toolgate.server.calls.observers import Observer
    from toolgate.server.features.telemetry.audit.recorder import AuditRecorder
    from toolgate.server.features.telemetry.metrics.collector import Metrics
    from toolgate.server.features.telemetry.traces import Traces
    from toolgate.server.state.audit.store import AuditStore, EntryReader
    from toolgate.transports.http.wire.request import Handler

METRICS = "/metrics"

log = logging.getLogger("toolgate.traces")


class TelemetryFeature:
    """What observes the calls of one server. A part that is not configured is None."""

    def __init__(self) -> None:
        self._audit_store: AuditStore | None = None
        self._audit: AuditRecorder | None = None
        self._metrics: Metrics | None = None
        self._traces: Traces | None = None
        self._flush: asyncio.Future[None] | None = None

    def build(self, host: AppHost) -> None:
        host.observers.append(partial(self._list_observers, host))
        host.own_entries.take(lambda _: self._open_own_entries())
        host.trace.take(lambda _: self._open_traces(host))
        host.on.calls_end.append(self._begin_flush)
        host.on.close.append(self._close_audit)
        host.on.end.append(self._wait_for_traces)
        if host.config.is_remote:
            host.documents.append(partial(self._open_metrics, host))
            host.on.serving.append(self._add_http_rows)

    async def connect(self, host: AppHost) -> None:
        """Nothing is to be learned before the first decision."""

    @contextlib.asynccontextmanager
    async def run(self, host: AppHost) -> AsyncGenerator[None]:
        yield

    def _list_observers(self, host: AppHost) -> "Sequence[Observer]":
        """Return the observers of each call. Raises UsageError if the audit log can't be written."""
        observers: list[Observer] = []
        self._open_audit(host)
        if self._audit is not None:
            observers.append(self._audit)
        if host.config.is_remote:
            from toolgate.server.features.telemetry.metrics.collector import Metrics  # start-up: HTTP only

            self._metrics = Metrics(lambda: host.server().registry.tools)
            observers.append(self._metrics.calls)
        return observers

    # -- the audit log

    def _open_audit(self, host: AppHost) -> None:
        """Open the log as --audit says; by default over HTTP, and if commands run in a sandbox."""
        config, workspaces = host.config, host.workspaces()
        level = config.audit or ("on" if config.is_remote or workspaces.level != "none" else "off")
        if level == "off":
            return
        from toolgate.server.features.telemetry.audit import file_store, recorder  # start-up: over stdio it is rare

        self._audit_store = file_store.find_store(host)
        try:
            self._audit = recorder.create_recorder(self._audit_store.open_log(), level, workspaces.sandbox_level)
        except OSError as error:
            raise UsageError(f"--audit: {key_check.describe_fault(error, 'audit')}") from None

    def _open_own_entries(self) -> "EntryReader | None":
        return None if self._audit_store is None else self._audit_store.open_reader()

    async def _close_audit(self) -> None:
        """Close the audit log: no call follows."""
        if self._audit is not None:
            await self._audit.aclose()

    # -- metrics

    def _open_metrics(self, host: AppHost) -> "tuple[str, Handler]":
        """Return the page of metrics, with all that is behind the transports."""
        from toolgate.server.features.telemetry.metrics import document, gauges  # start-up: HTTP only

        metrics, server, workspaces = self._metrics, host.server(), host.workspaces()
        assert metrics is not None  # the observers of the server are made
        subscriptions, work = server.notifications.subscriptions, server.call_tasks.work
        search, reader = host.search().load(), host.page_reader()
        metrics.add_rows(gauges.server_rows(subscriptions, work, workspaces, search, reader, workspaces.level))
        for list_rows in host.metric_rows:
            metrics.add_rows(list_rows())
        return METRICS, document.open_document(host.config, metrics)

    def _add_http_rows(self, http: "HttpGauges") -> None:
        from toolgate.server.features.telemetry.metrics import gauges  # start-up, as above

        assert self._metrics is not None
        self._metrics.add_rows(gauges.http_rows(http))

    # -- traces

    def _open_traces(self, host: AppHost) -> "Callable[[Any], Any] | None":
        """Return what puts a span around a method. If traces are not configured or can't be sent, None: the log has
        the reason."""
        config = host.config
        if not config.is_tracing:
            return None
        logging.getLogger("opentelemetry").setLevel(logging.CRITICAL)  # it would repeat a failure every few seconds
        if config.trace_protocol not in ("", "http/protobuf"):
            wrong = config.trace_protocol
            log.warning("OTEL_EXPORTER_OTLP_PROTOCOL: %.40s is not supported; traces are sent as http/protobuf", wrong)
        try:
            from toolgate.server.features.telemetry import traces  # start-up: rarely configured

            self._traces = traces.Traces(traces.create_provider(config.name), lambda: host.server().registry)
            return self._traces.trace_method
        except ImportError:
            from toolgate.tools.api.installation import name_extra  # start-up: seldom needed

            log.warning("no traces are sent, though OTEL_EXPORTER_OTLP_ENDPOINT is set: %s", name_extra("traces"))
        except Exception as error:  # other invalid values of the variables
            log.warning("no traces are sent: an OTEL_ variable has an invalid value (%s)", type(error).__name__)
            log.debug("traces", exc_info=True)
        return None

    def _begin_flush(self) -> None:
        """Begin to send the remaining traces, which may take seconds."""
        if self._traces is not None:
            self._flush = asyncio.ensure_future(self._traces.close())

    async def _wait_for_traces(self) -> None:
        if self._flush is not None:
            await self._flush

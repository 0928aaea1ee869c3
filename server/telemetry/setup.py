"""Build the configured telemetry: audit log, traces; over HTTP metrics and recent calls. Imports no other."""

import asyncio
import logging
from collections.abc import Callable
from typing import TYPE_CHECKING

from toolgate.server.calls.observers import Observer, Observers
from toolgate.server.calls.recent_calls import RecentCalls
from toolgate.server.config.load import Config
from toolgate.server.protocol.errors import UsageError
from toolgate.server.state.keys import check as key_check
from toolgate.server.telemetry.audit.store import AuditStore, EntryReader
from toolgate.tools.api.registry import Registry

if TYPE_CHECKING:
    from toolgate.server.telemetry.audit.recorder import AuditRecorder
    from toolgate.server.telemetry.metrics.collector import Metrics
    from toolgate.server.telemetry.traces import Traces

log = logging.getLogger("toolgate.traces")


class Telemetry:
    """What observes the calls of one server. A part that is not configured is None.

    audit_store: where the audit log is
    is_sandboxed: whether commands run in a sandbox
    sandbox_level: returns the level of a principal's commands
    registry: returns what is served
    recent_calls: the calls that the first page shows, or None over stdio

    Raises UsageError if the audit log can't be written.
    """

    def __init__(
        self,
        config: Config,
        audit_store: AuditStore,
        *,
        is_sandboxed: bool,
        sandbox_level: Callable[[str], str | None],
        registry: Callable[[], Registry],
        recent_calls: RecentCalls | None,
    ) -> None:
        self._audit_store = audit_store
        self._audit = _open_audit(config, audit_store, sandbox_level, is_sandboxed=is_sandboxed)
        self.traces = _open_traces(config, registry)
        self.metrics = _create_metrics(registry) if config.is_remote else None
        self.recent_calls = recent_calls
        self._flush: asyncio.Future[None] | None = None

    def observers(self) -> Observers:
        """Return the observers of each call."""
        call_metrics = self.metrics.calls if self.metrics is not None else None
        observers: list[Observer | None] = [self._audit, call_metrics, self.recent_calls]
        prepare = self._audit.prepare if self._audit is not None else None
        return Observers([observer for observer in observers if observer is not None], prepare)

    def own_entries(self) -> EntryReader | None:
        """Return the reader of the audit log; None if there is no log."""
        return None if self._audit is None else self._audit_store.open_reader()

    def begin_flush(self) -> None:
        """Begin to send the remaining traces, which may take seconds."""
        if self.traces is not None:
            self._flush = asyncio.ensure_future(self.traces.close())

    async def wait_for_traces(self) -> None:
        """Wait until `begin_flush` has sent them."""
        if self._flush is not None:
            await self._flush

    async def aclose(self) -> None:
        """Close the audit log: no call follows."""
        if self._audit is not None:
            await self._audit.aclose()


def _open_audit(
    config: Config, store: AuditStore, sandbox_level: Callable[[str], str | None], *, is_sandboxed: bool
) -> "AuditRecorder | None":
    """Open the log as --audit says; by default over HTTP, and if commands run in a sandbox."""
    level = config.audit or ("on" if config.is_remote or is_sandboxed else "off")
    if level == "off":
        return None
    from toolgate.server.telemetry.audit import recorder  # start-up: over stdio it is mostly off

    try:
        return recorder.create_recorder(store.open_log(), level, sandbox_level)
    except OSError as error:
        reason = f"{error.filename} can't be written: {error.strerror}" if error.strerror else str(error)
        raise UsageError(f"--audit: {reason}: {key_check.OTHERS['audit']}") from None


def _open_traces(config: Config, registry: Callable[[], Registry]) -> "Traces | None":
    """Return the traces; if they are not configured or can't be sent, None. The log has the reason."""
    if not config.is_tracing:
        return None
    logging.getLogger("opentelemetry").setLevel(logging.CRITICAL)  # it would repeat the same failure every few seconds
    if config.trace_protocol not in ("", "http/protobuf"):
        wrong = config.trace_protocol
        log.warning("OTEL_EXPORTER_OTLP_PROTOCOL: %.40s is not supported; traces are sent as http/protobuf", wrong)
    try:
        from toolgate.server.telemetry import traces  # start-up: rarely configured

        return traces.Traces(traces.create_provider(config.name), registry)
    except ImportError:
        from toolgate.tools.api.installation import name_extra  # start-up: seldom needed

        log.warning("no traces are sent, though OTEL_EXPORTER_OTLP_ENDPOINT is set: %s", name_extra("traces"))
    except Exception as error:  # other invalid values of the variables
        log.warning("no traces are sent: an OTEL_ variable has an invalid value (%s)", type(error).__name__)
        log.debug("traces", exc_info=True)
    return None


def _create_metrics(registry: Callable[[], Registry]) -> "Metrics":
    from toolgate.server.telemetry.metrics.collector import Metrics  # start-up: HTTP only

    return Metrics(lambda: registry().tools)

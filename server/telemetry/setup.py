"""Build the configured telemetry: audit log, traces; over HTTP metrics and recent calls. Imports no other."""

import logging
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from toolgate.server.calls.observers import Observer, Observers
from toolgate.server.config.load import Config
from toolgate.server.protocol.errors import UsageError
from toolgate.server.state import key_check
from toolgate.server.state.sealing_keys import SealingKeys
from toolgate.server.state.store import Store
from toolgate.server.telemetry.recent_calls import RecentCalls
from toolgate.server.workspaces.workspaces import Workspaces
from toolgate.tools.api.registry import Registry

if TYPE_CHECKING:
    from toolgate.server.base.bus.bus import Bus
    from toolgate.server.telemetry.audit.chain_reader import OwnRows
    from toolgate.server.telemetry.audit.reader import OwnEntries
    from toolgate.server.telemetry.audit.recorder import AuditRecorder
    from toolgate.server.telemetry.metrics.collector import Metrics
    from toolgate.server.telemetry.traces import Traces

log = logging.getLogger("toolgate.traces")


class Telemetry:
    """`sandboxed` is whether commands run in a sandbox; `registry()` returns what is served. A part that is not
    configured is None. The audit log is in files, or in the `shared` database under one of its keys. With `bus` the
    pages of all replicas show the calls of all. Raises UsageError if the audit log can't be written."""

    def __init__(
        self,
        config: Config,
        state: Path,
        workspaces: Workspaces,
        *,
        sandboxed: bool,
        registry: Callable[[], Registry],
        shared: tuple[Store, SealingKeys] | None = None,
        bus: "Bus | None" = None,
    ) -> None:
        self._state = state
        self._shared = shared
        self._audit = _open_audit(config, state, workspaces, sandboxed, shared)
        self.traces = _open_traces(config, registry)
        self.metrics = _create_metrics(registry) if config.is_remote else None
        self.recent_calls = _create_recent_calls(bus) if config.is_remote else None

    def observers(self) -> Observers:
        """Return the observers of each call."""
        call_metrics = self.metrics.calls if self.metrics is not None else None
        observers: list[Observer | None] = [self._audit, call_metrics, self.recent_calls]
        prepare = self._audit.prepare if self._audit is not None else None
        return Observers([observer for observer in observers if observer is not None], prepare)

    def own_entries(self) -> "OwnEntries | OwnRows | None":
        """Return the reader of the audit log; None if there is no log."""
        if self._audit is None:
            return None
        if self._shared is not None:
            from toolgate.server.telemetry.audit import chain_reader, chains  # start-up: only with --database

            store, keys = self._shared
            return chain_reader.OwnRows(store, keys.find(chains.KEY))
        from toolgate.server.telemetry.audit.reader import OwnEntries  # start-up: HTTP only

        return OwnEntries(self._state)

    async def flush_traces(self) -> None:
        """Send the remaining traces, which may take seconds."""
        if self.traces is not None:
            await self.traces.close()

    async def aclose(self) -> None:
        """Close the audit log: no call follows."""
        if self._audit is not None:
            await self._audit.aclose()


def _open_audit(
    config: Config,
    state: Path,
    workspaces: Workspaces,
    sandboxed: bool,
    shared: tuple[Store, SealingKeys] | None,
) -> "AuditRecorder | None":
    """Open the log as --audit says; by default over HTTP, and if commands run in a sandbox."""
    level = config.audit or ("on" if config.is_remote or sandboxed else "off")
    if level == "off":
        return None
    from toolgate.server.telemetry.audit import recorder  # start-up: over stdio it is mostly off

    try:
        return recorder.open_recorder(state, level, workspaces.sandbox_level, shared)
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
        from toolgate.tools.installation import name_extra  # start-up: seldom needed

        log.warning("no traces are sent, though OTEL_EXPORTER_OTLP_ENDPOINT is set: %s", name_extra("traces"))
    except Exception as error:  # other invalid values of the variables
        log.warning("no traces are sent: an OTEL_ variable has an invalid value (%s)", type(error).__name__)
        log.debug("traces", exc_info=True)
    return None


def _create_metrics(registry: Callable[[], Registry]) -> "Metrics":
    from toolgate.server.telemetry.metrics.collector import Metrics  # start-up: HTTP only

    return Metrics(lambda: registry().tools)


def _create_recent_calls(bus: "Bus | None") -> RecentCalls:
    if bus is None:
        return RecentCalls()
    from toolgate.server.telemetry.shared_calls import SharedCalls  # start-up: only replicas have it

    return SharedCalls(bus)

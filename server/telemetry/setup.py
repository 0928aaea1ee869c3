"""Builds what looks on while calls are served, as the configuration says: the audit log, the traces, and over HTTP the
metrics and the feed of the first page. Knows nothing of how calls are served; each is loaded where it is wanted alone.
"""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from toolgate.server.calls.observers import Observer, Observers
from toolgate.server.config.load import Config
from toolgate.server.protocol.errors import UsageError
from toolgate.server.telemetry.recent_calls import RecentCalls
from toolgate.server.workspaces.workspaces import Workspaces
from toolgate.tools.api.registry import Registry

if TYPE_CHECKING:
    from toolgate.server.telemetry.audit.own_entries import OwnEntries
    from toolgate.server.telemetry.audit.recorder import AuditRecorder
    from toolgate.server.telemetry.metrics import Metrics
    from toolgate.server.telemetry.traces import Traces


class Telemetry:
    """`kept_apart` is whether commands are, and `registry` gives what is served. What there is none of is None. Raises
    UsageError where the audit log can't be written."""

    def __init__(
        self,
        config: Config,
        state: Path,
        workspaces: Workspaces,
        *,
        sandboxed: bool,
        registry: Callable[[], Registry],
    ) -> None:
        self._state = state
        self._audit = _open_audit(config, state, workspaces, sandboxed)
        self.traces = _open_traces(config, registry)
        self.metrics = _make_metrics(registry) if config.is_remote else None
        self.recent_calls = RecentCalls() if config.is_remote else None

    def observers(self) -> Observers:
        """Who hears of each call."""
        counted = self.metrics.calls if self.metrics is not None else None
        heard: list[Observer | None] = [self._audit, counted, self.recent_calls]
        prepare = self._audit.prepare if self._audit is not None else None
        return Observers([observer for observer in heard if observer is not None], prepare)

    def own_entries(self) -> "OwnEntries | None":
        """Reads the audit log, where there is one."""
        if self._audit is None:
            return None
        from toolgate.server.telemetry.audit.own_entries import OwnEntries  # start-up: stdio does without

        return OwnEntries(self._state)

    async def flush_traces(self) -> None:
        """Hand over what was traced, which may take seconds."""
        if self.traces is not None:
            await self.traces.close()

    def close(self) -> None:
        """No call follows."""
        if self._audit is not None:
            self._audit.close()


def _open_audit(config: Config, state: Path, workspaces: Workspaces, kept_apart: bool) -> "AuditRecorder | None":
    """As --audit says; without a word over HTTP, and where commands are kept apart."""
    level = config.audit or ("on" if config.is_remote or kept_apart else "off")
    if level == "off":
        return None
    from toolgate.server.telemetry.audit import recorder  # start-up: over stdio most do without

    try:
        return recorder.open_recorder(state, level, workspaces.sandbox_level)
    except OSError as error:
        raise UsageError(f"--audit: {error}") from None


def _open_traces(config: Config, registry: Callable[[], Registry]) -> "Traces | None":
    if not config.is_tracing:
        return None
    from toolgate.server.telemetry import traces  # start-up: few have them

    return traces.open_traces(config.name, registry, config.trace_protocol)


def _make_metrics(registry: Callable[[], Registry]) -> "Metrics":
    from toolgate.server.telemetry.metrics import Metrics  # start-up: over stdio nobody could ask

    return Metrics(lambda: registry().tools)

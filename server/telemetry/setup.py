"""Builds what looks on while calls are served, as the configuration says: the audit log, the traces, and over HTTP the
metrics and the feed of the first page. Knows nothing of how calls are served; each is loaded where it is wanted alone.
"""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from toolgate.server.calls.observers import Observer, Observers
from toolgate.server.config.load import Config
from toolgate.server.protocol.errors import UsageError
from toolgate.server.telemetry.recent_calls import Feed
from toolgate.server.workspaces.workspaces import Workspaces
from toolgate.tools.api.registry import Registry

if TYPE_CHECKING:
    from toolgate.server.telemetry.audit.own_entries import Trail
    from toolgate.server.telemetry.audit.recorder import Audit
    from toolgate.server.telemetry.metrics import Metrics
    from toolgate.server.telemetry.traces import Traces


class Observation:
    """`kept_apart` is whether commands are, and `registry` gives what is served. What there is none of is None. Raises
    UsageError where the audit log can't be written."""

    def __init__(
        self,
        config: Config,
        state: Path,
        workspaces: Workspaces,
        *,
        kept_apart: bool,
        registry: Callable[[], Registry],
    ) -> None:
        self._state = state
        self._audit = _audit(config, state, workspaces, kept_apart)
        self.traces = _traces(config, registry)
        self.metrics = _metrics(registry) if config.remote else None
        self.feed = Feed() if config.remote else None

    def observers(self) -> Observers:
        """Who hears of each call."""
        counted = self.metrics.calls if self.metrics is not None else None
        heard: list[Observer | None] = [self._audit, counted, self.feed]
        prepare = self._audit.prepare if self._audit is not None else None
        return Observers([observer for observer in heard if observer is not None], prepare)

    def trail(self) -> "Trail | None":
        """Reads the audit log, where there is one."""
        if self._audit is None:
            return None
        from toolgate.server.telemetry.audit.own_entries import Trail  # start-up: stdio does without

        return Trail(self._state)

    async def send(self) -> None:
        """Hand over what was traced, which may take seconds."""
        if self.traces is not None:
            await self.traces.close()

    def close(self) -> None:
        """No call follows."""
        if self._audit is not None:
            self._audit.close()


def _audit(config: Config, state: Path, workspaces: Workspaces, kept_apart: bool) -> "Audit | None":
    """As --audit says; without a word over HTTP, and where commands are kept apart."""
    level = config.audit or ("on" if config.remote or kept_apart else "off")
    if level == "off":
        return None
    from toolgate.server.telemetry.audit import recorder  # start-up: over stdio most do without

    try:
        return recorder.opened(state, level, workspaces.level)
    except OSError as error:
        raise UsageError(f"--audit: {error}") from None


def _traces(config: Config, registry: Callable[[], Registry]) -> "Traces | None":
    if not config.traced:
        return None
    from toolgate.server.telemetry import traces  # start-up: few have them

    return traces.opened(config.name, registry, config.trace_protocol)


def _metrics(registry: Callable[[], Registry]) -> "Metrics":
    from toolgate.server.telemetry.metrics import Metrics  # start-up: over stdio nobody could ask

    return Metrics(lambda: registry().tools)

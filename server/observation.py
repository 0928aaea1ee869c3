"""Builds what looks on while calls are served, as the configuration says: the audit log, the traces, and over HTTP the
metrics and the feed of the first page. Knows nothing of how calls are served; each is loaded where it is wanted alone.
"""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from toolgate.server.config import Config
from toolgate.server.errors import UsageError
from toolgate.server.feed import Feed
from toolgate.server.observers import Observer, Observers
from toolgate.server.workspaces import Workspaces
from toolgate.tools.registry import Registry

if TYPE_CHECKING:
    from toolgate.server.audit.own import Trail
    from toolgate.server.audit.recording import Audit
    from toolgate.server.metrics import Metrics
    from toolgate.server.traces import Traces


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
        from toolgate.server.audit.own import Trail  # start-up: stdio does without

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
    from toolgate.server.audit import recording  # start-up: over stdio most do without

    try:
        return recording.opened(state, level, workspaces.level)
    except OSError as error:
        raise UsageError(f"--audit: {error}") from None


def _traces(config: Config, registry: Callable[[], Registry]) -> "Traces | None":
    if not config.traced:
        return None
    from toolgate.server import traces  # start-up: few have them

    return traces.opened(config.name, registry, config.trace_protocol)


def _metrics(registry: Callable[[], Registry]) -> "Metrics":
    from toolgate.server.metrics import Metrics  # start-up: over stdio nobody could ask

    return Metrics(lambda: registry().tools)

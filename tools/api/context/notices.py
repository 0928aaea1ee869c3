"""Hold a principal's notices, such as an ended background task, until its next tool result delivers them."""

from collections.abc import Callable, Mapping
from typing import NamedTuple

MAX_NOTICES = 32  # a client that never calls again must not fill memory; the oldest are dropped


class Notice(NamedTuple):
    """The text of a notice, and the scope needed to read it."""

    text: str
    scope: str


class CountedNotice(NamedTuple):
    """A notice, and how often it was added."""

    text: str
    scope: str
    times: int


class Notices:
    """One principal's notices: a background task that ended, a callback that fired. Each is delivered once.

    `on_added(notices, key)` and `on_dropped(key)` are called where other servers share them.
    """

    def __init__(
        self,
        on_added: Callable[["Notices", str], None] = lambda notices, key: None,
        on_dropped: Callable[[str], None] = lambda key: None,
    ) -> None:
        self._on_added = on_added
        self._on_dropped = on_dropped
        self.by_key: dict[str, Notice] = {}  # oldest first
        self._times: dict[str, int] = {}

    def add(self, key: str, text: str, scope: str) -> None:
        """Keep `text` under `key`. A later notice replaces one with the same key, and is counted."""
        self.by_key.pop(key, None)
        self.by_key[key] = Notice(text, scope)
        self._times[key] = self._times.get(key, 0) + 1
        while len(self.by_key) > MAX_NOTICES:
            self._remove(next(iter(self.by_key)))
        self._on_added(self, key)

    def drop(self, key: str) -> None:
        """Forget a notice that was delivered another way."""
        self._remove(key)
        self._on_dropped(key)

    def export(self) -> dict[str, CountedNotice]:
        """Remove and return all notices, oldest first."""
        held = {key: CountedNotice(*notice, self._times[key]) for key, notice in self.by_key.items()}
        self.by_key, self._times = {}, {}
        return held

    def put(self, exported: Mapping[str, CountedNotice]) -> None:
        """Add notices as another server had them."""
        for key, notice in exported.items():
            self.by_key.setdefault(key, Notice(notice.text, notice.scope))
            self._times[key] = self._times.get(key, 0) + notice.times

    def take(self, may_hear: Callable[[str], bool] = lambda _: True) -> dict[str, Notice]:
        """Remove and return the notices whose scope `may_hear` allows, oldest first."""
        taken = {
            key: notice if self._times[key] == 1 else notice._replace(text=f"{notice.text} ({self._times[key]} times)")
            for key, notice in self.by_key.items()
            if may_hear(notice.scope)
        }
        for key in taken:
            self._remove(key)
        return taken

    def restore(self, taken: dict[str, Notice]) -> None:
        """Put back notices that could not be delivered."""
        for key, notice in taken.items():
            if key not in self.by_key:
                self.add(key, *notice)

    def _remove(self, key: str) -> None:
        self.by_key.pop(key, None)
        self._times.pop(key, None)

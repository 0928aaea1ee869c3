"""Hold a principal's notices, such as an ended background task, until its next tool result delivers them."""

from collections.abc import Callable
from typing import NamedTuple

MAX_NOTICES = 32  # a client that never calls again must not fill memory; the oldest are dropped


class Notice(NamedTuple):
    """The text of a notice, and the scope needed to read it."""

    text: str
    scope: str


class Notices:
    """One principal's notices: a background task that ended, a callback that fired. Each is delivered once."""

    def __init__(self) -> None:
        self._held: dict[str, Notice] = {}
        self._times: dict[str, int] = {}

    def __bool__(self) -> bool:
        return bool(self._held)

    def add(self, key: str, text: str, scope: str) -> None:
        """Keep `text` under `key`. A later notice replaces one with the same key, and is counted."""
        self._held.pop(key, None)
        self._held[key] = Notice(text, scope)
        self._times[key] = self._times.get(key, 0) + 1
        while len(self._held) > MAX_NOTICES:
            self.drop(next(iter(self._held)))

    def drop(self, key: str) -> None:
        """Forget a notice that was delivered another way."""
        self._held.pop(key, None)
        self._times.pop(key, None)

    def take(self, may_hear: Callable[[str], bool] = lambda _: True) -> dict[str, Notice]:
        """Remove and return the notices whose scope `may_hear` allows, oldest first."""
        taken = {
            key: notice if self._times[key] == 1 else notice._replace(text=f"{notice.text} ({self._times[key]} times)")
            for key, notice in self._held.items()
            if may_hear(notice.scope)
        }
        for key in taken:
            self.drop(key)
        return taken

    def restore(self, taken: dict[str, Notice]) -> None:
        """Put back notices that could not be delivered."""
        for key, notice in taken.items():
            if key not in self._held:
                self.add(key, *notice)

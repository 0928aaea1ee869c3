"""Remember which files each session has read, and how they were then."""

from collections import OrderedDict

MAX_CALLERS = 1_000
MAX_FILES = 500  # of a session, the last read


class SeenFiles:
    """The stamps of files, by session or, without one, by principal. The longest unused are forgotten."""

    def __init__(self) -> None:
        self._callers: OrderedDict[tuple[str, str], OrderedDict[str, str]] = OrderedDict()

    def of(self, principal: str, session: str) -> dict[str, str]:
        """Return what the session has read: key of the file → stamp."""
        return dict(self._callers.get((principal, session), {}))

    def add(self, principal: str, session: str, key: str, stamp: str) -> None:
        """Remember that the session knows this content of the file."""
        caller = (principal, session)
        files = self._callers.setdefault(caller, OrderedDict())
        files[key] = stamp
        files.move_to_end(key)
        self._callers.move_to_end(caller)
        if len(files) > MAX_FILES:
            files.popitem(last=False)
        if len(self._callers) > MAX_CALLERS:
            self._callers.popitem(last=False)

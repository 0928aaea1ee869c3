"""Make the search when it is first needed: an idle server does without its engines."""

from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from toolgate.tools.reading.search.search import Search


class LazySearch:
    """The search of one server. `create` is called once, in the event loop."""

    def __init__(self, create: "Callable[[], Search]") -> None:
        self._create = create
        self._search: Search | None = None

    def load(self) -> "Search":
        """Return the search. Raises what `create` raises."""
        if self._search is None:
            self._search = self._create()
        return self._search

"""Describe a part of the first page that a feature adds: rows of a person's work, and what their buttons do.

The part is a macro of a template, which gets the values of `HomePage.part_values`. The page hides the part while the
macro returns nothing.
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import msgspec

ALREADY_ENDED = "It has already ended."


class ActionResult(msgspec.Struct, frozen=True):
    """What a form did, in a sentence for the person."""

    text: str
    status: int = 200


class PartRows(msgspec.Struct, frozen=True):
    """What a part shows of one person.

    more: the number of rows that are left out
    clients: ids of clients whose names the part shows
    grants: ids of grants whose clients it names
    is_work: whether the rows are work that goes on for the person
    """

    rows: Sequence[Any]
    more: int = 0
    clients: frozenset[str] = frozenset()
    grants: frozenset[str] = frozenset()
    is_work: bool = True


PartAction = Callable[[str, str, Mapping[str, str]], Awaitable[ActionResult]]


class PagePart(Protocol):
    """One part: `name` is that of its macro, and `title` its heading."""

    @property
    def name(self) -> str: ...

    @property
    def title(self) -> str: ...

    @property
    def template(self) -> Path:
        """The file with the macro. It imports macros from the templates of the page."""
        ...

    @property
    def actions(self) -> Mapping[str, PartAction]:
        """What a button does, by its name. It gets the principal, the id of the row and the fields of its form; all
        but the first may be hostile."""
        ...

    async def read(self, principal: str) -> PartRows:
        """Return the rows of a principal. Raises StateError."""
        ...

    def watch(self, principal: str, notify: Callable[[], None]) -> Callable[[], None]:
        """Call `notify` at each change of the principal's rows. Return a function that stops this."""
        ...

"""Make a part of the server when it is first used, and let one feature replace or wrap it until then."""

from collections.abc import Callable
from typing import Generic, TypeVar

T = TypeVar("T")


class SlotError(Exception):
    """A slot was taken twice, or after its part was made, or its part needs itself. This is a fault of a feature."""


class Slot(Generic[T]):
    """One part: calling the slot returns it. `default()` makes the single server's part."""

    def __init__(self, name: str, default: Callable[[], T]) -> None:
        self.name = name
        self._make = default
        self._part: list[T] = []  # the part, once it is made
        self._is_taken = False
        self._is_making = False

    @property
    def is_made(self) -> bool:
        return bool(self._part)

    def take(self, make: Callable[[Callable[[], T]], T]) -> None:
        """Have `make(default)` return the part; `default()` returns the single server's. Raises SlotError."""
        if self._is_taken or self._part:
            raise SlotError(f"the slot {self.name} is {'taken' if self._is_taken else 'in use'} already")
        self._is_taken = True
        default = self._make
        self._make = lambda: make(default)

    def __call__(self) -> T:
        if not self._part:
            if self._is_making:
                raise SlotError(f"the part of the slot {self.name} needs itself")
            self._is_making = True
            try:
                self._part.append(self._make())
            finally:
                self._is_making = False
        return self._part[0]

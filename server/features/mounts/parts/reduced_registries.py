"""Keep what people are shown who have switched something off: one registry for each choice and kind of clients.

A registry holds its encoded lists, so all of them together have a bound, and one that nobody chooses any more goes.
"""

from collections.abc import Callable
from weakref import WeakKeyDictionary

import msgspec

from toolgate.server.features.mounts.choices.switched_off import SwitchedOff
from toolgate.tools.api.registry import Registry

MAX_REDUCED = 256  # registries, of all choices and kinds of clients together


class ReducedRegistry(msgspec.Struct):
    """`used_at` counts the uses of all."""

    registry: Registry
    used_at: int = 0


class ReducedRegistries:
    """Registries by the whole one that they are a part of, and the choice; None is a choice that is not known."""

    def __init__(self, most: int = MAX_REDUCED) -> None:
        self._most = most
        self._uses = 0
        self._known: WeakKeyDictionary[Registry, dict[SwitchedOff | None, ReducedRegistry]] = WeakKeyDictionary()

    def find(self, whole: Registry, choice: SwitchedOff | None, create: Callable[[], Registry]) -> Registry:
        """Return the registry, which `create()` makes if it is not known, in the place of the one used longest ago."""
        known = self._known.setdefault(whole, {})
        found = known.get(choice)
        if found is None:
            self._make_room()
            found = known[choice] = ReducedRegistry(create())
        self._uses += 1
        found.used_at = self._uses
        return found.registry

    def drop(self, choice: SwitchedOff | None) -> None:
        """Forget the registries of a choice that nobody has any more."""
        for known in list(self._known.values()):
            known.pop(choice, None)

    def _make_room(self) -> None:
        all_known = list(self._known.values())
        if sum(map(len, all_known)) >= self._most:
            _, known, choice = min(
                ((each.used_at, known, choice) for known in all_known for choice, each in known.items()),
                key=lambda found: found[0],
            )
            del known[choice]

"""Keep what each principal's clients may be shown of a registry that also has what others alone are shown."""

from collections.abc import Callable, Collection

from toolgate.tools.api.registry import Part, Registry, identify

PartKey = tuple[str, str]  # the kind and what identifies a part

MAX_OWN = 128  # principals whose registries are kept


class OwnRegistries:
    """The registries of principals, made of one registry's parts. `private`: those that single people alone are shown.
    The registry itself is not kept: it is known for as long as it is served."""

    def __init__(self, registry: Registry, private: Collection[PartKey]) -> None:
        parts = {(part.kind, identify(part)): part for part in registry.parts}
        self._common = [part for key, part in parts.items() if key not in private]
        self._private: dict[PartKey, Part] = {key: parts[key] for key in private if key in parts}
        self._known: dict[str, Registry | None] = {}

    def find(self, principal: str, list_private: Callable[[str], Collection[PartKey]]) -> Registry | None:
        """Return what a principal may be shown, or None if it is all. The work grows with that, however many others
        have something."""
        if principal not in self._known:
            if len(self._known) >= MAX_OWN:
                del self._known[next(iter(self._known))]
            own = [self._private[key] for key in list_private(principal) if key in self._private]
            is_all = len(own) == len(self._private)
            self._known[principal] = None if is_all else Registry([*self._common, *own])
        return self._known[principal]

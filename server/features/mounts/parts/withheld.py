"""Find what a mounted server lists and this one withholds, so that who asks for it by name is told why."""

from collections.abc import Iterable

from toolgate.tools.api.registry import Part
from toolgate.tools.api.resource import Resource
from toolgate.tools.api.text.uris import MAX_CACHED_URI, canonicalise


class WithheldParts:
    """The parts that are not served, each with its mount."""

    def __init__(self, parts: Iterable[tuple[str, Part]] = ()) -> None:
        self._mounts: dict[tuple[str, str], str] = {}
        self._templates: list[tuple[str, Resource]] = []
        for mount, part in parts:
            self._mounts.setdefault((part.kind, part.key), mount)
            if isinstance(part, Resource) and part.is_template:
                self._templates.append((mount, part))

    def find_mount(self, kind: str, key: str) -> str | None:
        """Return the mount of a part, by its name or a URI, or None if nothing of it is withheld."""
        found = self._mounts.get((kind, key))
        if found is None and kind == "resources" and self._templates and len(key) <= MAX_CACHED_URI:
            canonical = canonicalise(key)
            matches = (mount for mount, part in self._templates if canonical and part.template.match_normal(canonical))
            found = next(matches, None)
        return found

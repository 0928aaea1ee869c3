"""Find what a mounted server lists and this one withholds, so that who asks for it by name is told why."""

from collections.abc import Iterable

from toolgate.server.features.mounts.resource_uris import normalise_uri
from toolgate.tools.api.registry import Part
from toolgate.tools.api.resource import Resource
from toolgate.tools.api.text.uris import MAX_CACHED_URI, canonicalise

FILES = "{+path}"  # the end of what reads a skill's files


class WithheldParts:
    """The parts of one mount that one kind of client is not served."""

    def __init__(self, parts: Iterable[Part] = ()) -> None:
        self._parts: dict[tuple[str, str], Part] = {}
        self._templates: list[Resource] = []
        self._views: set[str] = set()
        self._folders: list[str] = []  # of skills
        for part in parts:
            if isinstance(part, Resource) and part.relay is not None:
                self._parts.setdefault((part.kind, normalise_uri(part.key)), part)
                self._add_resource(part, part.relay.original)
            else:
                self._parts.setdefault((part.kind, part.key), part)

    def find(self, kind: str, key: str) -> Part | None:
        """Return a part by its name or a URI, or None if nothing of it is withheld."""
        if kind != "resources":
            return self._parts.get((kind, key))
        if not self._parts or len(key) > MAX_CACHED_URI:
            return None
        found, canonical = self._parts.get((kind, normalise_uri(key))), canonicalise(key)
        if found is None and canonical:
            found = next((each for each in self._templates if each.template.match_normal(canonical)), None)
        return found

    def has_uri(self, original: str) -> bool:
        """Return whether the mount's own URI is that of a view, or below a skill, which no template may lead to."""
        if not self._views and not self._folders:
            return False
        uri = normalise_uri(original)
        return uri in self._views or any(uri.startswith(folder) for folder in self._folders)

    def _add_resource(self, part: Resource, original: str) -> None:
        if not part.is_template:
            self._views.add(normalise_uri(original))
            return
        self._templates.append(part)
        if not part.is_listed:
            folder = original.removesuffix(FILES)
            self._folders.append(canonicalise(folder) or folder)

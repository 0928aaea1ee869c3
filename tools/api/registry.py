"""Look up tools, prompts, resources and types of events. A registry never changes: a change makes a new one."""

import fnmatch
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from types import MappingProxyType
from typing import TypeVar

from toolgate.tools.api.errors import CollisionError
from toolgate.tools.api.event import EventType
from toolgate.tools.api.prompt import Prompt
from toolgate.tools.api.resource import Resource
from toolgate.tools.api.scopes import READ
from toolgate.tools.api.text.uris import MAX_CACHED_URI, MAX_URI, canonicalise, parse_scheme
from toolgate.tools.api.tool import Tool

Part = Tool | Prompt | Resource | EventType
P = TypeVar("P", Tool, Prompt, Resource, EventType)

MAX_CACHED_MATCHES = 1_024  # cached URIs, a kilobyte each
NO_SCOPES: frozenset[str] = frozenset()
LISTING = frozenset((READ,))  # the scopes that listing needs, and reading a URI that matches nothing


class Registry:
    """All `parts`: `tools`, `prompts` and `events` by name, `resources` by URI, and `templates` by URI template.
    `listed_tools` and `listed_templates`: those that lists show; `listing_templates`: those that list resources."""

    def __init__(self, parts: Iterable[Part] = ()) -> None:
        self._parts: dict[tuple[str, str], Part] = {}
        for part in parts:
            self._add(part)
        found = self._parts.values()
        self.tools = _by_key(part for part in found if isinstance(part, Tool))
        self.listed_tools = _by_key(part for part in self.tools.values() if part.is_listed)
        self.prompts = _by_key(part for part in found if isinstance(part, Prompt))
        self.events = _by_key(part for part in found if isinstance(part, EventType))
        resources = [part for part in found if isinstance(part, Resource)]
        self.resources = _by_key(part for part in resources if not part.is_template)
        self.templates = _by_key(part for part in resources if part.is_template)
        self.listed_templates = _by_key(part for part in self.templates.values() if part.is_listed)
        self.listing_templates = [template for template in self.templates.values() if template.lists is not None]
        self._fixed = {identify(part): part for part in self.resources.values()}
        self._match_cache: dict[str, tuple[Resource, dict[str, str]] | None] = {}
        # scheme → the first resource that owns it: every URI of the scheme needs its scope and obeys its tool's rules
        owners = [part for part in resources if part.owns_scheme]
        self.scheme_owners = {parse_scheme(part.uri): part for part in reversed(owners)}
        self._templates_by_scheme: defaultdict[str, list[Resource]] = defaultdict(list)
        for template in self.templates.values():
            self._templates_by_scheme[parse_scheme(template.uri)].append(template)
        self._fixed_schemes = frozenset(map(parse_scheme, self._fixed))
        scopes = defaultdict[str, set[str]](set)
        for part in resources:
            scopes[parse_scheme(part.uri)].add(part.scope)
        self._scopes_by_scheme = {scheme: frozenset(held) for scheme, held in scopes.items()}

    @property
    def parts(self) -> Iterator[Part]:
        return iter(self._parts.values())

    def of_kind(self, kind: str) -> list[Part]:
        """Return the parts of one kind: "tools", "prompts", "resources" or "events"."""
        return [part for part in self._parts.values() if part.kind == kind]

    def resource(self, uri: str) -> tuple[Resource, dict[str, str]] | None:
        """Return the resource that serves `uri`, in any spelling, and the values of its variables, or None."""
        if len(uri) > MAX_URI:
            return None
        fixed = self.resources.get(uri)
        if fixed is not None:
            return fixed, {}
        if uri not in self._match_cache:
            found = self._match(uri)
            if len(uri) > MAX_CACHED_URI:
                return found
            if len(self._match_cache) >= MAX_CACHED_MATCHES:
                self._match_cache.clear()
            self._match_cache[uri] = found
        return self._match_cache[uri]

    def _match(self, uri: str) -> tuple[Resource, dict[str, str]] | None:
        scheme = parse_scheme(uri)
        canonical = canonicalise(uri) if scheme in self._scopes_by_scheme else None
        if canonical is None:
            return None
        if canonical in self._fixed:
            return self._fixed[canonical], {}
        for template in self._templates_by_scheme.get(scheme, ()):
            values = template.template.match_normal(canonical)
            if values is not None:
                return template, values
        return None

    def scopes_of(self, uri: str) -> frozenset[str]:
        """Return the scopes that reading `uri` needs: its scheme's, and its resource's or template's. A URI that
        matches nothing needs the scopes of listing."""
        if len(uri) > MAX_URI:
            return LISTING
        owner = self.scheme_owners.get(parse_scheme(uri))
        declared = [part.scope for part in (owner, self.templates.get(uri)) if part is not None]
        return self._own_scopes(uri).union(declared) or LISTING

    def _own_scopes(self, uri: str) -> frozenset[str]:
        """Return the scopes of the resource that serves `uri`; none if nothing does. The caller may lack them, so a URI
        is matched only if its scheme's resources differ in scopes, or some are fixed. A long URI needs the scopes of
        all of them."""
        fixed = self.resources.get(uri)
        if fixed is not None:
            return frozenset((fixed.scope,))
        scheme = parse_scheme(uri)
        scopes = self._scopes_by_scheme.get(scheme, NO_SCOPES)
        if (len(scopes) < 2 and scheme not in self._fixed_schemes) or len(uri) > MAX_CACHED_URI:
            return scopes
        found = self.resource(uri)
        return NO_SCOPES if found is None else frozenset((found[0].scope,))

    def without(self, patterns: Iterable[str]) -> "Registry":
        """Return this registry without the tools whose names match a pattern, case ignored."""
        hidden = [pattern.lower() for pattern in patterns]
        names = [name for name in self.tools if any(fnmatch.fnmatchcase(name.lower(), pattern) for pattern in hidden)]
        return Registry(part for part in self.parts if not (isinstance(part, Tool) and part.name in names))

    def _add(self, part: Part) -> None:
        key = identify(part)
        held = self._parts.get((part.kind, key))
        if held is not None:
            what = part.kind.removesuffix("s")
            raise CollisionError(f"{what} {part.key!r} is declared twice: in {held.source} and in {part.source}")
        self._parts[part.kind, key] = part


def identify(part: Part) -> str:
    """Return what must be unique among the parts of a kind: the canonical URI of a resource, the key of others."""
    uri = canonicalise(part.key) if isinstance(part, Resource) and not part.is_template else None
    return part.key if uri is None else uri


def _by_key(parts: Iterable[P]) -> Mapping[str, P]:
    return MappingProxyType({part.key: part for part in parts})

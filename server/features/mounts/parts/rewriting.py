"""Give the URIs in what a mounted server says the form that leads back to it, where another mount claims the same.

They stand in links, embedded resources and contents, and in the `_meta` of views. What a tool returns as data is its
own: nothing in structured content or in a text is changed.
"""

import contextlib
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import msgspec

from toolgate.server.features.mounts.resource_uris import Contested, expose_uri, format_contested
from toolgate.tools.api.text.uri_templates import UnusableTemplateError, UriTemplate

MEMBERS = ("content", "contents", "messages", "skill", "resources", "_meta")  # of a result
KEYS = frozenset(("uri", "uriTemplate", "resourceUri", "ui/resourceUri"))
OWN_DATA = frozenset(("structuredContent", "text", "blob", "data", "frontmatter"))
FOLDER = re.compile(r"([^{}]*/)\{\+\w+\}")  # a template for all that is below

Rewrite = Callable[[str], str]


class UriRewriter:
    """Rewrites the URIs of one mount, of which `contested` are claimed by others, too."""

    def __init__(self, mount: str, contested: Contested) -> None:
        self._mount = mount
        self._contested = {uri: mounts for uri, mounts in contested.items() if mount in mounts}
        self._folders = {found[1] for found in map(FOLDER.fullmatch, self._contested) if found}
        self._templates = list(_parse_templates(self._contested))

    @property
    def is_needed(self) -> bool:
        return bool(self._contested)

    def expose(self, uri: str) -> str:
        """Return the URI or the template as it is served."""
        if self._is_below(uri) or any(template.match(uri) is not None for template in self._templates):
            return format_contested(self._mount, uri)
        return expose_uri(self._mount, uri, self._contested)

    def restore(self, uri: str, served: str, original: str) -> str:
        """Return the mount's own form of a URI that was asked for, which matched `served`."""
        if served == original:
            return uri
        prefix = format_contested(self._mount, "ui://" if original.startswith("ui://") else "")
        rest = uri.removeprefix(prefix)
        return f"ui://{rest}" if original.startswith("ui://") else rest

    def _is_below(self, uri: str) -> bool:
        """Return whether the URI is below a contested folder."""
        folder = uri.rstrip("/") if self._folders else ""
        while folder := folder.rpartition("/")[0]:
            if f"{folder}/" in self._folders:
                return True
        return False

    def rewrite_item(self, item: Mapping[str, Any]) -> dict[str, Any]:
        """Return an item of a list with its URIs as they are served. Raises RecursionError for one that is too deep."""
        if not self.is_needed:
            return {**item}
        return {**item, **{key: self._rewrite(key, item[key]) for key in ("_meta", *KEYS) if key in item}}

    def rewrite_skill(self, entry: dict[str, Any]) -> dict[str, Any]:
        """Return the entry of a skill in the same way."""
        return {name: self._rewrite(name, value) for name, value in entry.items()} if self.is_needed else entry

    def rewrite_result(self, result: dict[str, Any]) -> dict[str, Any]:
        """Return a result, whose members may be raw, in the same way."""
        if not self.is_needed:
            return result
        return {**result, **{key: self._rewrite(key, _decode(result[key])) for key in MEMBERS if key in result}}

    def _rewrite(self, key: str, value: Any) -> Any:
        if isinstance(value, str):
            return self.expose(value) if key in KEYS else value
        if key in OWN_DATA:
            return value
        if isinstance(value, dict):
            return {name: self._rewrite(name, each) for name, each in value.items()}
        return [self._rewrite(key, each) for each in value] if isinstance(value, list) else value


def _parse_templates(uris: Iterable[str]) -> Iterator[UriTemplate]:
    """Yield the templates among the URIs, but for folders; one that can't be matched is not served."""
    for uri in uris:
        if "{" in uri and not FOLDER.fullmatch(uri):
            with contextlib.suppress(UnusableTemplateError):
                yield UriTemplate(uri)


def _decode(value: Any) -> Any:
    return msgspec.json.decode(value) if isinstance(value, msgspec.Raw) else value

"""Make a function a resource or a URI template: read, list and watch it.

Source: MCP server/resources; RFC 6570 for templates (tools/api/text/uri_templates.py).
"""

import inspect
import logging
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from functools import cached_property
from typing import Any

import msgspec

from toolgate.tools.api.completion import Completions, F
from toolgate.tools.api.content import Contents, ResourceLink
from toolgate.tools.api.context.context import Context
from toolgate.tools.api.function import DeclaredPart, Function
from toolgate.tools.api.scopes import PLUGINS
from toolgate.tools.api.text import uri_templates
from toolgate.tools.api.text.uris import canonicalise, check_uri

MAX_LISTED = 1_000  # of one template in resources/list: a person reads no longer list

log = logging.getLogger(__name__)


class Resource(DeclaredPart, kw_only=True, eq=False):
    """A resource at one URI, or a template with variables (`{name}`) for many. `uri` is the URI or the template.
    `annotations` (audience, priority, lastModified) are sent unchanged. `is_listed`: whether lists show it; it is read
    all the same."""

    kind = "resources"
    uri: str
    mime_type: str | None
    annotations: Mapping[str, Any] | None = None
    owns_scheme: bool = False
    tool: str | None = None
    lists: Function | None = None
    watches: Function | None = None
    is_listed: bool = True
    _has_warned: bool = False  # log a listing that can't be shown once only: clients list often

    def __post_init__(self) -> None:
        self.completions = Completions(self.function.call, lambda: self.variables)

    @property
    def key(self) -> str:
        return self.uri

    @property
    def functions(self) -> Sequence[Function]:
        declared = (self.function, self.lists, self.watches)
        return (*(function for function in declared if function is not None), *self.completions.functions)

    @property
    def is_template(self) -> bool:
        return "{" in self.uri

    @cached_property
    def template(self) -> uri_templates.UriTemplate:
        return uri_templates.UriTemplate(self.uri)

    @property
    def variables(self) -> Sequence[str]:
        return self.template.variables if self.is_template else ()

    def match(self, uri: str) -> dict[str, str] | None:
        """Return the values of the variables if `uri` matches in any spelling, else None."""
        canonical = canonicalise(uri)
        if canonical is None or not self.is_template:
            return {} if uri == self.uri or (canonical is not None and canonical == canonicalise(self.uri)) else None
        return self.template.match_normal(canonical)

    def completion(self, variable: str) -> Callable[[F], F]:
        """Return a decorator for the function that suggests values for `variable`."""
        return self.completions.declare(variable)

    def listing(self, call: F) -> F:
        """Decorate the function that returns a template's ResourceLinks for resources/list. It may take a Context."""
        self.lists = Function(call)
        return call

    def watching(self, call: F) -> F:
        """Decorate an async generator function that takes the template's variables and yields at each change of the
        resource. It runs while the resource has a subscriber."""
        self.watches = Function(call)
        return call

    def verify(self) -> None:
        """Raise TypeError, ValueError or UnicodeError for a resource that can't be listed or matched."""
        told: list[object] = [self.uri, self.name, self.title, self.description]
        if not all(isinstance(word, str) for word in told) or not self.name:
            raise TypeError(f"URI, name, title and description of {self.uri!r} must be strings"[:200])
        if self.is_template:
            try:
                _ = self.template
            except uri_templates.UnusableTemplateError as error:
                raise uri_templates.UnusableTemplateError(f"{self.uri!r}: {error}") from None
        else:
            check_uri(self.uri)
        msgspec.json.encode([*told, self.mime_type, self.annotations, self.icons, self.meta])
        if self.lists is not None and not self.is_template:
            raise TypeError(f"{self.uri} is one resource: only a template lists others")
        if self.watches is not None and not inspect.isasyncgenfunction(self.watches.call):
            raise TypeError(f"the watching function of {self.uri} must be an async generator function")
        for function in (self.function, self.watches):
            if function is not None:
                self._verify_parameters(function)
        self.completions.verify()

    async def read(self, uri: str, variables: Mapping[str, str], context: Context) -> list[Contents]:
        """Return the contents of `uri`, whose variables are given. Raises NotFound and ToolError."""
        value = await self.function(variables, context)
        parts = value if isinstance(value, list) and value and all(isinstance(p, Contents) for p in value) else [value]
        return [self._contents(uri, part) for part in parts]

    async def list_links(self, context: Context) -> list[ResourceLink]:
        """Return the links that resources/list shows this caller for a template; at most MAX_LISTED."""
        if self.lists is None:
            return []
        found: Iterable[ResourceLink] = await self.lists({}, context)
        links = list(found)
        for link in links[:MAX_LISTED]:
            if not isinstance(link, ResourceLink):  # pyright: ignore[reportUnnecessaryIsInstance]
                raise TypeError(f"{self.uri} listed a {type(link).__name__}, which is no ResourceLink")
        return self.valid_links(links)

    def valid_links(self, links: Sequence[ResourceLink]) -> list[ResourceLink]:
        """Return those of the first MAX_LISTED links with a valid URI: an invalid one may make a client drop all."""
        sound = [link for link in links[:MAX_LISTED] if _is_valid_link(link)]
        if len(sound) < len(links[:MAX_LISTED]) and not self._has_warned:
            self._has_warned = True
            log.warning("%s from %s listed a link without a name or a URI: it is left out", self.uri, self.source)
        return sound

    def watch(self, variables: Mapping[str, str], context: Context) -> AsyncIterator[object] | None:
        """Return an iterator that yields at each change of the resource, or None if its changes can't be watched."""
        if self.watches is None:
            return None
        given: dict[str, Any] = dict(variables)
        if self.watches.context is not None:
            given[self.watches.context] = context
        changes: AsyncIterator[object] = self.watches.call(**given)
        return changes

    def _verify_parameters(self, function: Function) -> None:
        parameters = inspect.signature(function.call).parameters
        taken = set(parameters) - {function.context}
        needed = {name for name in taken if parameters[name].default is inspect.Parameter.empty}
        optional = set(self.template.optional) if self.is_template else set[str]()
        if not set(self.variables) <= taken or not needed <= set(self.variables) - optional:
            names = ", ".join(self.variables) or "none"
            raise TypeError(f"the function of {self.uri} must take its variables ({names}), not {sorted(taken)}")

    def _contents(self, uri: str, value: Any) -> Contents:
        match value:
            case Contents():
                return value
            case str():
                return Contents(uri, self.mime_type or "text/plain", value)
            case bytes():
                return Contents(uri, self.mime_type or "application/octet-stream", blob=value)
            case _:
                return Contents(uri, self.mime_type or "application/json", msgspec.json.encode(value).decode())


def _is_valid_link(link: ResourceLink) -> bool:
    told: list[object] = [link.uri, link.name]
    try:
        check_uri(link.uri)
    except (ValueError, TypeError):  # TypeError: a plugin may not return a string
        return False
    return all(isinstance(word, str) and word for word in told)


def resource(
    uri: str,
    *,
    name: str | None = None,
    title: str | None = None,
    description: str | None = None,
    mime_type: str | None = None,
    annotations: Mapping[str, Any] | None = None,
    icons: Sequence[Mapping[str, Any]] | None = None,
    meta: Mapping[str, Any] | None = None,
    scope: str = PLUGINS,
    owns_scheme: bool = False,
    tool: str | None = None,
) -> Callable[[Callable[..., Any]], Resource]:
    """Make a function the resource `uri`. Its docstring is the description.

    With `{variables}` (RFC 6570) the URI is a template, whose variables are the function's parameters, as strings. The
    function returns text, bytes, Contents, a list of Contents, or any JSON value. It raises NotFound if the resource
    does not exist. `owns_scheme`: every URI of this scheme needs this scope and obeys the rules for `tool`, which
    returns the same content.
    """

    def declare(call: Callable[..., Any]) -> Resource:
        function = Function(call)
        called = name or call.__name__
        text = description or function.description
        if not text:
            raise TypeError(f"resource {uri!r} has no docstring: its docstring is its description")
        return Resource(
            function,
            called,
            title or called,
            text,
            uri=uri,
            mime_type=mime_type,
            scope=scope,
            icons=icons,
            meta=meta,
            annotations=annotations,
            owns_scheme=owns_scheme,
            tool=tool,
        )

    return declare

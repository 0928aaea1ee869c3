"""Answer tools/list, prompts/list, resources/templates/list and resources/list.

Pages that don't depend on the caller are encoded once per registry. A cursor names the last item of its page, so items
added or removed elsewhere move no other item to another page. Source: MCP server/utilities/pagination.
"""

import asyncio
import base64
import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec

from toolgate.server.calls.client import NoClient
from toolgate.server.methods import resources
from toolgate.server.methods.server import ReadableResources, Server
from toolgate.server.protocol import serialization
from toolgate.server.protocol.errors import InvalidParams
from toolgate.server.protocol.revisions import Revision
from toolgate.server.protocol.session import Call, Session
from toolgate.tools.api.content import ResourceLink
from toolgate.tools.api.context.context import Context
from toolgate.tools.api.registry import Registry
from toolgate.tools.api.resource import Resource
from toolgate.tools.api.text.uris import parse_scheme

log = logging.getLogger("toolgate.lists")

PAGE = 250  # items: few clients ask for a second page, and few servers have more
MAX_CURSOR = 16_384  # characters; a URI of 8 KiB fits
UNKNOWN_CURSOR = "unknown cursor: ask for the first page again"
MAX_READABLE = 64  # sets of scopes whose readable resources are cached: few clients ask for other scopes than most
LISTING_TIME = 5.0  # seconds a template may take to list its resources

Parts = Callable[[Registry], Mapping[str, Any]]
Formatter = Callable[[Any, Revision], dict[str, Any]]


def list_parts(server: Server, field: str, parts: Parts, format_part: Formatter, call: Call) -> msgspec.Raw:
    """Return the `parts` under `field`, each as the revision wants it."""
    registry = server.registry_for(call.session)
    pages, listed = server.list_cache(registry).pages, parts(registry)
    keys = list(listed)
    begin = page_start(call.params.get("cursor"), field, keys)
    page = (field, call.revision.name, begin)
    encoded = pages.get(page)
    if encoded is None:
        end, following = page_end(begin, field, keys)
        result = _page(field, [format_part(listed[key], call.revision) for key in keys[begin:end]], following)
        result = serialization.add_cache_hints(result, call.revision, serialization.CACHE_FOR)
        if call.revision.result_types:
            result = serialization.add_result_type(result, server.identity(call.revision))
        encoded = msgspec.Raw(msgspec.json.encode(result))
        if begin % PAGE == 0:  # other positions come from cursors that are forged or out of date
            pages[page] = encoded
    return encoded


async def list_resources(server: Server, call: Call) -> dict[str, Any]:
    """Answer resources/list: the fixed resources, then those of each template, as far as the caller may read them."""
    hidden = await resources.hidden_schemes(server, call.session)
    fixed = _find_readable(server, call.session, hidden)
    links = await _list_templates(server, call.session, hidden)
    every: Sequence[Resource | ResourceLink] = [*fixed.resources, *links] if links else fixed.resources
    keys = [*fixed.uris, *(link.uri for link in links)] if links else fixed.uris
    begin = page_start(call.params.get("cursor"), "resources", keys)
    end, following = page_end(begin, "resources", keys)
    spelled = [serialization.format_resource(listed, call.revision) for listed in every[begin:end]]
    return serialization.add_cache_hints(_page("resources", spelled, following), call.revision, 0)


def _find_readable(server: Server, session: Session, hidden: frozenset[str]) -> ReadableResources:
    """Return the fixed resources that the caller may read: the same for the same scopes until others are served."""
    key, registry = (session.scopes, hidden), server.registry_for(session)
    readable = server.list_cache(registry).readable
    found = readable.get(key)
    if found is None:
        if len(readable) >= MAX_READABLE:
            readable.clear()
        every = registry.resources.values()
        held = [each for each in every if _is_readable(server, session, hidden, each.uri)]
        found = readable[key] = ReadableResources(held, [each.uri for each in held])
    return found


async def _list_templates(server: Server, session: Session, hidden: frozenset[str]) -> list[ResourceLink]:
    """Return the resources that templates list and the caller may read."""
    listing = server.registry_for(session).listing_templates
    templates = [template for template in listing if _is_readable(server, session, hidden, template.uri)]
    if not templates:
        return []
    if server.prepare is not None:
        await server.prepare(session.principal)
    context = Context(server.services.of_session(session), NoClient())
    lists = await asyncio.gather(*(_list_template(template, context) for template in templates))
    return [link for links in lists for link in links if _is_readable(server, session, hidden, link.uri)]


def _is_readable(server: Server, session: Session, hidden: frozenset[str], uri: str) -> bool:
    if parse_scheme(uri) in hidden:
        return False
    return session.scopes is None or session.allows(server.registry.scopes_of(uri))


async def _list_template(template: Resource, context: Context) -> list[ResourceLink]:
    """Return a template's resources. A listing that fails or is slow costs only its own entries."""
    try:
        async with asyncio.timeout(LISTING_TIME):
            return await template.list_links(context)
    except asyncio.CancelledError:
        raise
    except BaseException:  # whatever a plugin raises
        log.warning("the listing of %s from %s failed", template.uri, template.source, exc_info=True)
        return []


def _page(field: str, items: list[dict[str, Any]], following: str | None) -> dict[str, Any]:
    return {field: items} if following is None else {field: items, "nextCursor": following}


def page_start(cursor: object, what: str, keys: Sequence[str]) -> int:
    """Return where the page for `cursor` (None: the first) begins in the list `what`. Raises InvalidParams."""
    if cursor is None:
        return 0
    if not isinstance(cursor, str) or len(cursor) > MAX_CURSOR:
        raise InvalidParams(UNKNOWN_CURSOR)
    try:
        raw = base64.b64decode(cursor.encode("ascii"), altchars=b"-_", validate=True)
        listed, index, key = msgspec.json.decode(raw, type=tuple[str, int, str])
    except (ValueError, msgspec.MsgspecError):
        raise InvalidParams(UNKNOWN_CURSOR) from None
    if listed != what or not index > 0:
        raise InvalidParams(UNKNOWN_CURSOR)
    if index <= len(keys) and keys[index - 1] == key:
        return index
    try:
        return keys.index(key) + 1
    except ValueError:
        return min(index - 1, len(keys))  # the item is gone: later ones moved up


def page_end(begin: int, what: str, keys: Sequence[str], size: int = PAGE) -> tuple[int, str | None]:
    """Return where that page ends, and the cursor of the next page, or None."""
    index = begin + size
    if index >= len(keys):
        return len(keys), None
    return index, base64.urlsafe_b64encode(msgspec.json.encode((what, index, keys[index - 1]))).decode()

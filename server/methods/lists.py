"""Answer tools/list, prompts/list, resources/templates/list and resources/list.

What does not depend on the caller is encoded once a page, until the registry changes.
"""

import asyncio
import logging
from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from toolgate.server.calls.client import NoClient
from toolgate.server.methods import resources
from toolgate.server.protocol import pagination, serialization
from toolgate.server.protocol.revisions import Revision
from toolgate.server.protocol.session import Call
from toolgate.server.server import Server
from toolgate.tools.api.content import ResourceLink
from toolgate.tools.api.context import Context
from toolgate.tools.api.registry import Registry
from toolgate.tools.api.resource import Resource

log = logging.getLogger("toolgate.lists")

LISTING_TIME = 5.0  # seconds a template may take to say what there is

Parts = Callable[[Registry], Mapping[str, Any]]
Formatter = Callable[[Any, Revision], dict[str, Any]]


def list_parts(server: Server, field: str, parts: Parts, format_part: Formatter, call: Call) -> msgspec.Raw:
    """Return the `parts` under `field`, each as the revision wants it."""
    listed = parts(server.registry)
    keys = list(listed)
    begin = pagination.page_start(call.params.get("cursor"), field, keys)
    page = (field, call.revision.name, begin)
    encoded = server.pages.get(page)
    if encoded is None:
        end, following = pagination.page_end(begin, field, keys)
        result = _page(field, [format_part(listed[key], call.revision) for key in keys[begin:end]], following)
        result = serialization.add_cache_hints(result, call.revision, serialization.CACHE_FOR)
        if call.revision.result_types:
            result = serialization.add_result_type(result, server.identity(call.revision))
        encoded = msgspec.Raw(msgspec.json.encode(result))
        if begin % pagination.PAGE == 0:  # others come of cursors that were made up, or are out of date
            server.pages[page] = encoded
    return encoded


async def list_resources(server: Server, call: Call) -> dict[str, Any]:
    """resources/list: the fixed ones, then what each template has for this caller; of both what they may read."""
    hidden = await resources.hidden_schemes(server, call.session)

    def is_allowed(uri: str) -> bool:
        if uri.partition(":")[0] in hidden:
            return False
        return call.session.scopes is None or call.session.allows(server.registry.scopes_of(uri))

    fixed: list[Resource | ResourceLink] = [held for held in server.registry.resources.values() if is_allowed(held.uri)]
    context = Context(server.services.of_session(call.session), NoClient())
    templates = [template for template in server.registry.templates.values() if is_allowed(template.uri)]
    for links in await asyncio.gather(*(_list_template(template, context) for template in templates)):
        fixed += [link for link in links if is_allowed(link.uri)]
    keys = [listed.uri for listed in fixed]
    begin = pagination.page_start(call.params.get("cursor"), "resources", keys)
    end, following = pagination.page_end(begin, "resources", keys)
    spelled = [serialization.format_resource(listed, call.revision) for listed in fixed[begin:end]]
    return serialization.add_cache_hints(_page("resources", spelled, following), call.revision, 0)


async def _list_template(template: Resource, context: Context) -> list[ResourceLink]:
    """A listing that fails or dawdles costs its own entries and no other's."""
    if template.lists is None:
        return []
    try:
        async with asyncio.timeout(LISTING_TIME):
            return await template.list_links(context)
    except asyncio.CancelledError:
        raise
    except BaseException:  # a plugin's: whatever it raises
        log.warning("the listing of %s from %s failed", template.uri, template.source, exc_info=True)
        return []


def _page(field: str, items: list[dict[str, Any]], following: str | None) -> dict[str, Any]:
    return {field: items} if following is None else {field: items, "nextCursor": following}

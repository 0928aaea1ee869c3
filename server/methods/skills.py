"""Answer skills/list, skills/get and resources/directory/read: the skills extension (2026-07-28).

It lists the skills that InvokeSkill offers, then those of other servers, which answer for their own.
Source: SEP-2640 (ext-skills).
"""

import asyncio
import logging
from collections.abc import Iterable
from typing import Any

import msgspec

from toolgate.server.calls.client import NoClient
from toolgate.server.methods.execution import execute_or_refuse
from toolgate.server.methods.lists import page_end, page_start
from toolgate.server.methods.resources import read_uri
from toolgate.server.methods.server import Server
from toolgate.server.protocol import serialization
from toolgate.server.protocol.errors import InternalError, InvalidParams
from toolgate.server.protocol.session import Call
from toolgate.tools.api.content import ResourceLink
from toolgate.tools.api.context.context import Context
from toolgate.tools.api.errors import NotFound, ToolError
from toolgate.tools.api.resource import Resource
from toolgate.tools.builtin import workspace_files
from toolgate.tools.builtin.skills import resources
from toolgate.tools.builtin.skills.files import MANIFEST, SkillEntries, SkillEntry
from toolgate.tools.builtin.skills.skills import Skill, Skills
from toolgate.tools.builtin.skills.yaml_fields import SkillError

log = logging.getLogger("toolgate.skills")

SKILLS_PAGE = 20  # skills: each may list 512 files, which must be hashed
FOLDERS = (resources.list_folder, workspace_files.list_folder)  # what resources/directory/read serves


async def list_skills(server: Server, published: SkillEntries, call: Call) -> dict[str, Any]:
    """Answer skills/list. A skill that is unusable when read is left out."""
    catalogue = await asyncio.to_thread(_skills(server, call).catalogue)
    views = server.views
    others = {} if views is None else {entry["uri"]: entry for entry in views.list_skills(call.session)}
    keys = [*catalogue, *others]
    begin = page_start(call.params.get("cursor"), "skills", keys)
    end, following = page_end(begin, "skills", keys, SKILLS_PAGE)
    page = keys[begin:end]
    found = await asyncio.to_thread(_list_entries, published, [catalogue[key] for key in page if key in catalogue])
    return _add_cursor({"skills": [*found, *(others[key] for key in page if key in others)]}, call, following)


async def get_skill(server: Server, published: SkillEntries, call: Call) -> dict[str, Any]:
    uri = read_uri(call)
    if (far := _find_far(server, call, uri)) is not None:
        return await _ask_far(server, call, far)
    values = resources.skill_file.match(uri) or {}
    name = values.get("name", "") if values.get("path") == MANIFEST else ""
    wanted = await asyncio.to_thread(_skills(server, call).find, name) if name else None
    found = await asyncio.to_thread(_list_entries, published, [] if wanted is None else [wanted])
    if not found:
        raise InvalidParams("unknown skill", {"uri": uri})
    return _add_cursor({"skill": found[0]}, call, None)


async def read_directory(server: Server, call: Call) -> dict[str, Any]:
    """Answer resources/directory/read: the direct entries of a folder of a skill or of the workspace."""
    uri = read_uri(call)
    if uri.endswith("/") and not uri.endswith("//"):
        uri = uri[:-1]  # names the same folder
    if (far := _find_far(server, call, uri, f"{uri}/{MANIFEST}")) is not None:
        return await _ask_far(server, call, far)
    context = Context(server.services.of_session(call.session), NoClient())
    found = await _list_folder(uri, context)
    keys = [link.uri for link in found]
    begin = page_start(call.params.get("cursor"), uri, keys)
    end, following = page_end(begin, uri, keys)
    listed = [serialization.format_resource(link, call.revision) for link in found[begin:end]]
    return _add_cursor({"resources": listed}, call, following)


async def _list_folder(uri: str, context: Context) -> list[ResourceLink]:
    for folder in FOLDERS:
        try:
            return await folder(uri, context)
        except NotFound:
            continue
        except ToolError as error:
            raise InternalError(error.text, {"uri": uri}) from None
    raise InvalidParams("unknown directory", {"uri": uri})


def _find_far(server: Server, call: Call, *uris: str) -> Resource | None:
    """Return the resource of another server that serves the first of the URIs that is served, or None."""
    found = next(filter(None, (server.find_resource(call.session, uri) for uri in uris)), None)
    return found[0] if found is not None and found[0].relay is not None else None


async def _ask_far(server: Server, call: Call, resource: Resource) -> dict[str, Any]:
    """Return the other server's answer to this request."""
    relay = resource.relay
    assert relay is not None  # it is another server's
    params: dict[str, Any] = {name: call.params[name] for name in ("uri", "cursor") if name in call.params}
    await server.policy.require_rate(call, resource.scope)

    async def work(context: Context) -> dict[str, Any]:
        result = {**await relay.ask_about(call.method, params, context)}
        return result if "ttlMs" in result else _add_cursor(result, call, None)

    return await execute_or_refuse(server, call, work, "reading", {"uri": params["uri"]})


def _list_entries(published: SkillEntries, skills: Iterable[Skill]) -> list[dict[str, Any]]:
    found: list[SkillEntry] = []
    for skill in skills:
        try:
            found.append(published.read_entry(skill.name, skill.folder))
        except SkillError as error:
            log.warning("skill %s is not listed: %s", skill.folder, error)
    return [msgspec.to_builtins(entry) for entry in found]


def _skills(server: Server, call: Call) -> Skills:
    skills: Skills = server.services.of_session(call.session).built_in[Skills]
    return skills


def _add_cursor(result: dict[str, Any], call: Call, following: str | None) -> dict[str, Any]:
    """Add the cursor and caching hints: no caching, as files change without notice."""
    if following is not None:
        result["nextCursor"] = following
    return serialization.add_cache_hints(result, call.revision, 0)

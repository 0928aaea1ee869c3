"""Offer the files of skills as resources, `skill://name/…`, and each skill as a prompt.

tools/builtin/skills/files.py finds the files. The prompt has the same text as InvokeSkill.
"""

import asyncio
from collections.abc import AsyncIterator, Mapping
from functools import lru_cache
from pathlib import Path

from toolgate.tools.api.content import Contents, ResourceLink
from toolgate.tools.api.context.context import Context
from toolgate.tools.api.errors import NotFound
from toolgate.tools.api.function import Function
from toolgate.tools.api.prompt import Prompt, PromptArgument
from toolgate.tools.api.resource import Resource, resource
from toolgate.tools.builtin.file_types import FOLDER, mime_type, to_contents
from toolgate.tools.builtin.skills.files import MANIFEST, MAX_BYTES, SkillFile, children, files_of, uri_of
from toolgate.tools.builtin.skills.skills import MAX_SKILLS, Skill, Skills, instructions
from toolgate.tools.workspace.files import access as files

ARGUMENTS = [PromptArgument("arguments", "what the skill is to work on")]


@resource(
    "skill://{name}/{+path}", name="skill-file", title="File of a skill", scope="tools:workflow", owns_scheme=True
)
async def skill_file(name: str, path: str, ctx: Context) -> Contents:
    """A file of a skill: its SKILL.md, or one beside it."""
    return await asyncio.to_thread(_contents, ctx, name, path)


@skill_file.watching
async def skill_file_changes(name: str, path: str, ctx: Context) -> AsyncIterator[object]:
    place = await asyncio.to_thread(_find_path, ctx, name, path)
    if place is not None:
        async for change in ctx.watch_path(place):
            yield change


@skill_file.completion("name")
def skill_names(value: str, ctx: Context) -> list[str]:
    return [name for name in ctx.service(Skills).catalogue() if name.startswith(value)]


@skill_file.completion("path")
def skill_paths(value: str, arguments: Mapping[str, str], ctx: Context) -> list[str]:
    skill = ctx.service(Skills).find(arguments.get("name", ""))
    return [] if skill is None else [file.path for file in files_of(skill.folder) if file.path.startswith(value)]


@lru_cache(MAX_SKILLS)
def manifest_of(skill: Skill) -> Resource:
    """Return the SKILL.md as a resource of its own, for lists; the same object until the skill changes."""
    uri = uri_of(skill.name, MANIFEST)

    async def read(ctx: Context) -> Contents:
        return await asyncio.to_thread(_contents, ctx, skill.name, MANIFEST)

    async def changes(ctx: Context) -> AsyncIterator[object]:
        async for change in skill_file_changes(skill.name, MANIFEST, ctx):
            yield change

    function = Function(read, str(skill.folder / MANIFEST))
    kind = mime_type(MANIFEST)
    scope = "tools:workflow"
    made = Resource(function, skill.name, skill.name, skill.description, uri=uri, mime_type=kind, scope=scope)
    made.watching(changes)
    return made


@lru_cache(MAX_SKILLS)
def prompt_of(skill: Skill) -> Prompt:
    """Return the skill as a prompt; the same object until the skill changes."""

    async def ask(ctx: Context, arguments: str = "") -> str:
        return await asyncio.to_thread(instructions, ctx.service(Skills), skill.name, arguments)

    function = Function(ask, str(skill.folder / MANIFEST))
    scope = "tools:workflow"
    return Prompt(function, skill.name, skill.name, skill.description, scope=scope, declared_arguments=ARGUMENTS)


async def list_folder(uri: str, ctx: Context) -> list[ResourceLink]:
    """Return links to the entries of the folder `uri` of a skill. Raises NotFound if it is none."""
    found = skill_file.match(f"{uri}/{MANIFEST}")
    if found is None:
        raise NotFound(f"{uri} is no folder of a skill")
    name, inner = found["name"], found["path"].removesuffix(MANIFEST).removesuffix("/")
    return await asyncio.to_thread(_links, ctx, name, inner)


def _links(ctx: Context, name: str, inner: str) -> list[ResourceLink]:
    skill = ctx.service(Skills).find(name)
    held = children(skill.folder, inner) if skill is not None else None
    if skill is None or held is None:
        raise NotFound(f"skill {name!r} has no folder {inner!r}")
    start = inner and f"{inner}/"
    folders = [ResourceLink(uri_of(name, f"{start}{each}"), each, mime_type=FOLDER) for each in held[0]]
    return folders + [_link(skill, file) for file in held[1]]


def _link(skill: Skill, file: SkillFile) -> ResourceLink:
    uri, size = uri_of(skill.name, file.path), file.stamp[0]
    if file.path == MANIFEST:
        return ResourceLink(uri, skill.name, description=skill.description, mime_type=mime_type(MANIFEST), size=size)
    return ResourceLink(uri, file.path.rpartition("/")[2], mime_type=mime_type(file.path), size=size)


def _find_path(ctx: Context, name: str, path: str) -> Path | None:
    """Return the path of a skill's file, or None if there is no such file."""
    skill = ctx.service(Skills).find(name)
    if skill is None or all(file.path != path for file in files_of(skill.folder)):
        return None
    return skill.folder / path


def _contents(ctx: Context, name: str, path: str) -> Contents:
    place = _find_path(ctx, name, path)
    if place is None:
        raise NotFound(f"skill {name!r} has no file {path!r}")
    folder = place.parents[path.count("/")]
    return to_contents(uri_of(name, path), path, files.read_below(folder, path, MAX_BYTES))

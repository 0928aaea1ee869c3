"""Offer the files of the caller's workspace as read-only resources, `file:///…`.

A URI holds an absolute path; a path outside the workspace's root is not found.
"""

import asyncio
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

from toolgate.tools.api.completion import MAX_VALUES, Completion
from toolgate.tools.api.content import Contents, ResourceLink
from toolgate.tools.api.context.context import Context
from toolgate.tools.api.errors import NotFound, ToolError
from toolgate.tools.api.resource import resource
from toolgate.tools.api.text import uri_templates
from toolgate.tools.builtin.file_types import FOLDER, mime_type, to_contents
from toolgate.tools.workspace.files.access import FileEntry
from toolgate.tools.workspace.workspace import Workspace

MAX_FILE = 8 * 2**20  # bytes: more than any client shows; a command can cut a larger one
LARGE = 2**20  # bytes; above, a thread decodes: the largest takes 10 ms
MAX_LISTED = 200  # entries of the workspace in resources/list, which every client requests
MAX_ENTRIES = 1_000  # of a folder that is read


@resource("file:///{+path}", name="file", title="File of the workspace", scope="tools:read", owns_scheme=True)
async def workspace_file(path: str, ctx: Context) -> Contents:
    """A file of the workspace, up to 8 MiB, or the names in a folder of it. The path is absolute."""
    absolute = f"/{path}"
    found = await ctx.service(Workspace).stat_path(absolute)
    uri = _uri(path) or f"file:///{path}"
    if not found.is_folder:
        data = await ctx.workspace.read_file(absolute, MAX_FILE, anywhere=False)
        if len(data) > LARGE:
            return await asyncio.to_thread(to_contents, uri, absolute, data)
        return to_contents(uri, absolute, data)
    entries, more = await ctx.service(Workspace).entries(absolute, MAX_ENTRIES)
    names = [f"{entry.name}/" if entry.is_folder else entry.name for entry in entries]
    return Contents(uri, FOLDER, "\n".join([*names, *(["… and more"] if more else [])]))


@workspace_file.listing
async def top_level(ctx: Context) -> list[ResourceLink]:
    """Return links to the entries of the workspace's root that are not hidden."""
    root = str(ctx.workspace.root)
    entries, _ = await ctx.service(Workspace).entries(root, MAX_ENTRIES)
    return _links(root, [entry for entry in entries if entry.name[0] != "."])[:MAX_LISTED]


@workspace_file.watching
async def file_changes(path: str, ctx: Context) -> AsyncIterator[object]:
    """Yield at each change, also of links. Once a link leads outside, that is told, but nothing about the target."""
    before = await _is_inside(ctx, f"/{path}")
    if not before:
        return
    async for change in ctx.watch_path(Path(f"/{path}")):
        now = await _is_inside(ctx, f"/{path}")
        if before or now:
            yield change
        before = now


async def _is_inside(ctx: Context, path: str) -> bool:
    try:
        await ctx.service(Workspace).resolve(path)
    except NotFound:
        return False
    return True


@workspace_file.completion("path")
async def paths(value: str, ctx: Context) -> Completion:
    """Suggest paths folder by folder, from the workspace's own. Hidden entries need their typed dot."""
    root, value = f"{ctx.workspace.root}/".lstrip("/"), value.lstrip("/")
    if len(value) < len(root) and root.startswith(value):
        return Completion([root], 1)
    folder, slash, typed = value.rpartition("/")
    try:
        entries, more = await ctx.service(Workspace).entries(f"/{folder}", MAX_ENTRIES)
    except ToolError:
        return Completion([], 0)
    fitting = [entry for entry in entries if entry.name.startswith(typed) and (typed or entry.name[0] != ".")]
    values = [f"{folder}{slash}{entry.name}{'/' if entry.is_folder else ''}" for entry in fitting]
    return Completion(values[:MAX_VALUES], None if more else len(values), more or len(values) > MAX_VALUES or None)


async def list_folder(uri: str, ctx: Context) -> list[ResourceLink]:
    """Return links to the entries of the folder `uri`. Raises NotFound if it is no folder of the workspace."""
    found = workspace_file.match(uri)
    if found is None:
        raise NotFound(f"{uri} is no folder of the workspace")
    path = f"/{found['path']}"
    entries, _ = await ctx.service(Workspace).entries(path, MAX_ENTRIES)
    return _links(path, entries)


def _links(folder: str, entries: Sequence[FileEntry]) -> list[ResourceLink]:
    """Return a link for each entry that a URI can name."""
    links: list[ResourceLink] = []
    for entry in entries:
        kind, size = (FOLDER, None) if entry.is_folder else (mime_type(entry.name), entry.size)
        if (uri := _uri(f"{folder}/{entry.name}".lstrip("/"))) is not None:
            links.append(ResourceLink(uri, entry.name, mime_type=kind, size=size))
    return links


def _uri(path: str) -> str | None:
    spelled = uri_templates.encode_path(path)
    return None if spelled is None else f"file:///{spelled}"

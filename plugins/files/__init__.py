"""Read, Write, Edit, Glob and Grep: tools for files, with the rights of the caller's own Bash.

Each call runs worker.py in the caller's sandbox, as its user: the kernel decides which files it may open. Over HTTP
without namespaces (levels `uid` and `none`), paths must also be in the workspace, and not in the server's own folder.
"""

import logging
import secrets
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from toolgate.tools import Context, ToolError, tool

from .launch import build_command, encode_request
from .memory import SeenFiles

MAX_CONTENT = 8 * 2**20  # characters
MAX_ANSWER = 2**20  # bytes; texts are far shorter
MAX_REMEMBERED = 200  # characters; other commands of the caller could forge an answer at levels `uid` and `none`
SECONDS = 20.0  # of a call, which ends what never would: clients give up after about 60
log = logging.getLogger("toolgate.plugins.files")
seen = SeenFiles()


class Answer(msgspec.Struct, frozen=True):
    """The worker's answer."""

    text: str = ""
    key: Annotated[str, Meta(max_length=MAX_REMEMBERED)] = ""
    stamp: Annotated[str, Meta(max_length=MAX_REMEMBERED)] = ""
    error: str = ""


FilePath = Annotated[str, "absolute, or relative to Bash's working directory"]


@tool(name="Read", title="Read a file", read_only=True, open_world=False, scope="tools:read")
async def read(
    file_path: FilePath,
    ctx: Context,
    offset: Annotated[int, "first line; negative: from the end"] = 1,
    limit: Annotated[int, "lines", Meta(ge=1)] = 2_000,
) -> str:
    """Read a text file. Returns numbered lines, at most 30,000 characters; says how to go on."""
    answer = await _run(ctx, "read", {"path": file_path, "offset": offset, "limit": min(limit, 2**31)})
    return answer.text


@tool(name="Write", title="Write a file", idempotent=True, open_world=False, scope="tools:shell")
async def write(file_path: FilePath, content: Annotated[str, "all of it; JSON may be an object"], ctx: Context) -> str:
    """Create a file, and its folders, or replace one that you have read in this session. Prefer Edit for changes."""
    _check_length(content=content)
    known = seen.of(ctx.principal, ctx.caller_state.key)
    answer = await _run(ctx, "write", {"path": file_path, "content": content, "known": known}, changes_files=True)
    return answer.text


@tool(name="Edit", title="Edit a file", open_world=False, scope="tools:shell")
async def edit(
    file_path: FilePath,
    old_string: Annotated[str, "exact text without line numbers, which occurs once"],
    new_string: str,
    ctx: Context,
    replace_all: bool = False,
) -> str:
    """Replace text in a file."""
    _check_length(old_string=old_string, new_string=new_string)
    given = {"path": file_path, "old": old_string, "new": new_string, "every": replace_all}
    return (await _run(ctx, "edit", given, changes_files=True)).text


@tool(name="Glob", title="Find files by name", read_only=True, open_world=False, scope="tools:read")
async def glob(
    pattern: Annotated[str, "such as src/**/*.{ts,tsx}"],
    ctx: Context,
    path: Annotated[str, "folder"] = ".",
    ignored: Annotated[bool, "also what .gitignore leaves out"] = False,
) -> str:
    """Find files by name, the newest first, at most 200."""
    return (await _run(ctx, "glob", {"path": path, "pattern": pattern, "ignored_too": ignored})).text


@tool(name="Grep", title="Search in files", read_only=True, open_world=False, scope="tools:read")
async def grep(
    pattern: Annotated[str, "regular expression"],
    ctx: Context,
    path: Annotated[str, "file or folder"] = ".",
    glob: Annotated[str, "only such files: *.py"] = "",
    mode: Literal["lines", "files", "counts"] = "lines",
    context: Annotated[int, "lines around a match", Meta(ge=0, le=20)] = 0,
    ignore_case: bool = False,
) -> str:
    """Search the lines of files, without those that .gitignore leaves out."""
    given = {"path": path, "pattern": pattern, "glob": glob, "mode": mode, "context": context}
    return (await _run(ctx, "grep", {**given, "any_case": ignore_case, "rg": True})).text


async def _run(ctx: Context, task: str, arguments: dict[str, Any], *, changes_files: bool = False) -> Answer:
    """Return the worker's answer, and remember the file that it names. Raises ToolError."""
    workspace, cwd = ctx.workspace, ctx.caller_state.cwd
    is_confined = not ctx.settings.any_file and workspace.sandbox != "bwrap"
    roots = [str(workspace.root), str(workspace.output_folder)] if is_confined else None
    private = str(workspace.private_folder) if is_confined and workspace.private_folder is not None else None
    where = {"cwd": str(cwd or workspace.root), "roots": roots, "private": private}
    request = {"task": task, "arguments": arguments, **where}
    argv, modules = build_command(workspace.sandbox)
    try:
        end = await workspace.run_program(
            argv,
            given=modules + encode_request(request),
            limit=MAX_ANSWER,
            timeout=SECONDS,
            changes_files=changes_files,
        )
    except TimeoutError:
        hint = "simplify the pattern, or narrow path or glob" if task in ("glob", "grep") else "use Bash"
        raise ToolError(f"it took longer than {SECONDS:g} s and was stopped: {hint}") from None
    try:
        answer = msgspec.json.decode(end.output, type=Answer)
    except (msgspec.DecodeError, ValueError):  # the latter: it is not UTF-8
        reference = secrets.token_hex(6)
        log.error("reference %s: exit code %s, %r", reference, end.exit_code, end.output[-2_000:])
        raise ToolError(f"the file worker failed, reference {reference}: use Bash") from None
    if answer.error:
        raise ToolError(answer.error)
    if answer.key:
        seen.add(ctx.principal, ctx.caller_state.key, answer.key, answer.stamp)
    return answer


def _check_length(**texts: str) -> None:
    for name, text in texts.items():
        if len(text) > MAX_CONTENT:
            raise ToolError(f"{name} has {len(text):,} characters, over {MAX_CONTENT:,}: write it in Bash, in parts")

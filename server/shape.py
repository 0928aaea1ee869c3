"""Spells tools and their answers as a revision knows them. Knows nothing of sessions or methods: the one place where
what a tool wrote once is cut to what may be sent."""

from typing import Any

from toolgate.server.envelope import SERVER
from toolgate.server.revisions import Revision
from toolgate.tools.content import Audio, Content, Output, ResourceLink, Text
from toolgate.tools.tool import Tool

CACHE_FOR = 60_000  # ms a list may be held: plugins and skills change while people watch


def tool(offered: Tool, revision: Revision) -> dict[str, Any]:
    """A tool as `tools/list` spells it."""
    spelled: dict[str, Any] = {"name": offered.name}
    if revision.titles:
        spelled["title"] = offered.title
    spelled["description"] = offered.description
    spelled["inputSchema"] = offered.input
    if offered.output is not None and _may_be_structured(offered.output.get("type") == "object", revision):
        spelled["outputSchema"] = offered.output
    if revision.tool_annotations:
        hints = offered.annotations
        spelled["annotations"] = {
            "title": offered.title,
            "readOnlyHint": hints.read_only,
            "destructiveHint": hints.destructive,
            "idempotentHint": hints.idempotent,
            "openWorldHint": hints.open_world,
        }
    return spelled


def output(answer: Output, revision: Revision, has_schema: bool) -> dict[str, Any]:
    """A tool's answer as `tools/call` spells it."""
    spelled: dict[str, Any] = {"content": [_block(block, revision) for block in answer.content]}
    if answer.structured is not None and has_schema:
        is_object = not isinstance(answer.structured, (list, tuple, str, int, float))
        if _may_be_structured(is_object, revision):
            spelled["structuredContent"] = answer.structured
    spelled["isError"] = answer.is_error
    return spelled


def finish(result: dict[str, Any], server: dict[str, Any]) -> dict[str, Any]:
    """Add to a result what a revision with result types wants on every one; `server` is who we are."""
    result.setdefault("resultType", "complete")
    result.setdefault("_meta", {})[SERVER] = server
    return result


def cached(result: dict[str, Any], revision: Revision) -> dict[str, Any]:
    """A list with what a client needs to know to keep it."""
    if not revision.caching:
        return result
    return {**result, "ttlMs": CACHE_FOR, "cacheScope": "private"}


def implementation(name: str, version: str, revision: Revision) -> dict[str, Any]:
    """Who we are, as `Implementation`."""
    spelled = {"name": name, "version": version}
    if revision.titles:
        spelled["title"] = "Toolgate" if name == "toolgate" else name
    return spelled


def _may_be_structured(is_object: bool, revision: Revision) -> bool:
    return revision.structured and (is_object or revision.any_structured)


def _block(block: Content, revision: Revision) -> Content:
    """The block, or the words for it where the revision has no such block."""
    match block:
        case ResourceLink() if not revision.resource_links:
            return Text(f"{block.title or block.name}: {block.uri}")
        case Audio() if not revision.audio:
            return Text(f"[{block.mime_type}, {len(block.data)} bytes: this client's protocol revision has no audio]")
        case _:
            return block

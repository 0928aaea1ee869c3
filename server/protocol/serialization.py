"""Format parts and results for a revision: the one place where what a plugin declared is cut to what may be sent."""

from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

import msgspec

from toolgate.server.protocol.request_meta import SERVER
from toolgate.server.protocol.revisions import REVISIONS, SUPPORTED, Revision
from toolgate.server.protocol.task import StoredTask
from toolgate.tools.api.content import Audio, Content, Contents, EmbeddedResource, Message, Output, ResourceLink, Text
from toolgate.tools.api.prompt import Prompt
from toolgate.tools.api.resource import Resource
from toolgate.tools.api.tool import Tool

POLL = 1_000  # ms between two looks at a task; most that become one end within a minute
PAYLOADS = {"input_required": "inputRequests", "completed": "result", "failed": "error"}  # a task's status → its own

CACHE_FOR = 60_000  # ms a list may be held: plugins and skills change while people watch


def format_tool(
    offered: Tool, revision: Revision, schemes: list[dict[str, Any]] | None = None, *, full: bool = False
) -> dict[str, Any]:
    """A tool as `tools/list` spells it. `schemes`: how one signs in for it, which hosts look for in either place.
    `full`: lean tools have structured content too."""
    spelled = _format_part(offered, revision)
    if schemes is not None:
        spelled["securitySchemes"] = schemes
        if revision.part_meta:
            spelled["_meta"] = {**spelled.get("_meta", {}), "securitySchemes": schemes}
    spelled["inputSchema"] = offered.input
    if is_structured(offered, revision, full=full):
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


def format_prompt(offered: Prompt, revision: Revision) -> dict[str, Any]:
    """A prompt as `prompts/list` spells it."""
    spelled = _format_part(offered, revision)
    if offered.arguments:
        spelled["arguments"] = offered.arguments
    return spelled


def format_template(offered: Resource, revision: Revision) -> dict[str, Any]:
    """A template as `resources/templates/list` spells it."""
    return {"uriTemplate": offered.uri, **_format_resource_part(offered, revision)}


def format_resource(offered: Resource | ResourceLink, revision: Revision) -> dict[str, Any]:
    """A resource as `resources/list` spells it."""
    spelled = {"uri": offered.uri, **_format_resource_part(offered, revision)}
    if isinstance(offered, ResourceLink) and offered.size is not None:
        spelled["size"] = offered.size
    return spelled


def fingerprint_list(parts: Sequence[Tool | Prompt | Resource]) -> tuple[bytes, list[object]]:
    """All that lists say of `parts`, to be compared. What a template lists is not known before it is asked, so its
    function stands for it."""
    spelled = [_FORMATTERS[part.kind](part, _NEWEST) for part in parts]
    return msgspec.json.encode(spelled), [part.lists for part in parts if isinstance(part, Resource)]


def format_message(said: Message, revision: Revision) -> dict[str, Any]:
    """A message of a prompt as `prompts/get` spells it."""
    content = Text(said.content) if isinstance(said.content, str) else said.content
    return {"role": said.role, "content": _format_block(content, revision)}


def format_contents(held: Contents, revision: Revision) -> Contents:
    """What `resources/read` gives."""
    return held if revision.part_meta or held.meta is None else msgspec.structs.replace(held, meta=None)


def is_structured(offered: Tool, revision: Revision, *, full: bool) -> bool:
    """Whether a client of `revision` is told the tool's output schema, and is sent what fits it."""
    if (offered.lean and not full) or not revision.structured or offered.output is None:
        return False
    return revision.any_structured or offered.output.get("type") == "object"


def format_output(answer: Output, revision: Revision, structured: Any) -> dict[str, Any]:
    """A tool's answer as `tools/call` spells it; `structured` is what is sent as data, None for nothing."""
    spelled: dict[str, Any] = {"content": [_format_block(block, revision) for block in answer.content]}
    if structured is not None:
        spelled["structuredContent"] = structured
    spelled["isError"] = answer.is_error
    return spelled


def format_task(kept: StoredTask) -> dict[str, Any]:
    """A deferred call as the result that creates it spells it (extension tasks, "Tasks")."""
    spelled: dict[str, Any] = {
        "taskId": kept.id,
        "status": kept.status,
        "createdAt": _format_time(kept.created),
        "lastUpdatedAt": _format_time(kept.updated),
        "ttlMs": round((kept.expires - kept.created) * 1000),
        "pollIntervalMs": POLL,
    }
    if kept.message is not None:
        spelled["statusMessage"] = kept.message
    return spelled


def format_detailed_task(kept: StoredTask) -> dict[str, Any]:
    """A deferred call with all there is to know of it."""
    spelled = format_task(kept)
    payload = kept.questions if kept.status == "input_required" else kept.outcome
    if payload is not None:
        spelled[PAYLOADS[kept.status]] = msgspec.Raw(payload)
    return spelled


def add_result_type(result: dict[str, Any], server: dict[str, Any]) -> dict[str, Any]:
    """Add to a result what a revision with result types wants on every one; `server` is who we are."""
    result.setdefault("resultType", "complete")
    result.setdefault("_meta", {})[SERVER] = server
    return result


def add_cache_hints(result: dict[str, Any], revision: Revision, milliseconds: int) -> dict[str, Any]:
    """A result with what a client needs to know to keep it that long."""
    if not revision.caching:
        return result
    return {**result, "ttlMs": milliseconds, "cacheScope": "private"}


def format_implementation(name: str, version: str, revision: Revision) -> dict[str, Any]:
    """Who we are, as `Implementation`."""
    spelled = {"name": name, "version": version}
    if revision.titles:
        spelled["title"] = "Toolgate" if name == "toolgate" else name
    return spelled


def _format_part(offered: Tool | Prompt | Resource | ResourceLink, revision: Revision) -> dict[str, Any]:
    """What all parts have in common."""
    spelled: dict[str, Any] = {"name": offered.name}
    if revision.titles and offered.title is not None:
        spelled["title"] = offered.title
    if offered.description is not None:
        spelled["description"] = offered.description
    if revision.icons and offered.icons:
        spelled["icons"] = offered.icons
    if revision.part_meta and offered.meta:
        spelled["_meta"] = offered.meta
    return spelled


def _format_resource_part(offered: Resource | ResourceLink, revision: Revision) -> dict[str, Any]:
    spelled = _format_part(offered, revision)
    if offered.mime_type is not None:
        spelled["mimeType"] = offered.mime_type
    if offered.annotations:
        spelled["annotations"] = offered.annotations
    return spelled


_NEWEST = REVISIONS[SUPPORTED[0]]  # it has all there is
_FORMATTERS: Mapping[str, Callable[[Any, Revision], dict[str, Any]]] = {
    Tool.kind: format_tool,
    Prompt.kind: format_prompt,
    Resource.kind: format_template,
}


def _format_time(seconds: float) -> str:
    """ISO 8601, UTC."""
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _format_block(block: Content, revision: Revision) -> Content:
    """The block, or the words for it where the revision has no such block."""
    match block:
        case ResourceLink() if not revision.resource_links:
            return Text(f"{block.title or block.name}: {block.uri}")
        case ResourceLink() if block.icons and not revision.icons:
            return msgspec.structs.replace(block, icons=None)
        case EmbeddedResource() if block.resource.meta and not revision.part_meta:
            return EmbeddedResource(format_contents(block.resource, revision), block.annotations)
        case Audio() if not revision.audio:
            return Text(f"[{block.mime_type}, {len(block.data)} bytes: this client's protocol revision has no audio]")
        case _:
            return block

"""Format parts and results for a revision, without what that revision lacks."""

from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

import msgspec

from toolgate.server.base.task import StoredTask
from toolgate.server.protocol.request_meta import SERVER
from toolgate.server.protocol.revisions import REVISIONS, SUPPORTED, Revision
from toolgate.server.protocol.session import Call
from toolgate.tools.api.content import Audio, Content, Contents, EmbeddedResource, Message, Output, ResourceLink, Text
from toolgate.tools.api.event import EventType
from toolgate.tools.api.prompt import Prompt
from toolgate.tools.api.resource import Resource
from toolgate.tools.api.tool import Tool

POLL = 1_000  # ms between two polls of a task; most tasks end within a minute
PAYLOADS = {"input_required": "inputRequests", "completed": "result", "failed": "error"}  # status → the task's member

CACHE_FOR = 60_000  # ms a client may cache a list: plugins and skills change while people watch


def format_tool(
    offered: Tool, revision: Revision, schemes: list[dict[str, Any]] | None = None, *, full: bool = False
) -> dict[str, Any]:
    """Return a tool for `tools/list`. `schemes`: its securitySchemes, which hosts read in two places. `full`:
    structured content for lean tools too."""
    if offered.relay is not None:
        return {**offered.relay.wire}
    data = _format_part(offered, revision)
    if schemes is not None:
        data["securitySchemes"] = schemes
        if revision.part_meta:
            data["_meta"] = {**data.get("_meta", {}), "securitySchemes": schemes}
    data["inputSchema"] = offered.input
    if is_structured(offered, revision, full=full):
        data["outputSchema"] = offered.output
    if revision.tool_annotations:
        hints = offered.annotations
        data["annotations"] = {
            "title": offered.title,
            "readOnlyHint": hints.read_only,
            "destructiveHint": hints.destructive,
            "idempotentHint": hints.idempotent,
            "openWorldHint": hints.open_world,
        }
    return data


def format_prompt(offered: Prompt, revision: Revision) -> dict[str, Any]:
    if offered.relay is not None:
        return {**offered.relay.wire}
    data = _format_part(offered, revision)
    if offered.arguments:
        data["arguments"] = offered.arguments
    return data


def format_template(offered: Resource, revision: Revision) -> dict[str, Any]:
    if offered.relay is not None:
        return {**offered.relay.wire}
    return {"uriTemplate": offered.uri, **_format_resource_part(offered, revision)}


def format_event_type(offered: EventType, _revision: Revision) -> dict[str, Any]:
    """Return a type of events for `events/list`, which adds its `delivery`."""
    data: dict[str, Any] = {
        "name": offered.name,
        "description": offered.description,
        "inputSchema": offered.input,
        "payloadSchema": offered.payload,
    }
    return {**data, "_meta": offered.meta} if offered.meta else data


def format_resource(offered: Resource | ResourceLink, revision: Revision) -> dict[str, Any]:
    if isinstance(offered, Resource) and offered.relay is not None:
        return {**offered.relay.wire}
    data = {"uri": offered.uri, **_format_resource_part(offered, revision)}
    if isinstance(offered, ResourceLink) and offered.size is not None:
        data["size"] = offered.size
    return data


def fingerprint_list(parts: Sequence[Tool | Prompt | Resource | EventType]) -> tuple[bytes, list[object]]:
    """Return what lists show of `parts`, for comparison. A template's listing is unknown until called, so its function
    stands for it."""
    data = [_FORMATTERS[part.kind](part, _NEWEST) for part in parts]
    return msgspec.json.encode(data), [part.lists for part in parts if isinstance(part, Resource)]


def format_message(message: Message, revision: Revision) -> dict[str, Any]:
    content = Text(message.content) if isinstance(message.content, str) else message.content
    return {"role": message.role, "content": _format_block(content, revision)}


def format_contents(contents: Contents, revision: Revision) -> Contents:
    return contents if revision.part_meta or contents.meta is None else msgspec.structs.replace(contents, meta=None)


def is_structured(offered: Tool, revision: Revision, *, full: bool) -> bool:
    """Return whether a client of `revision` gets the tool's output schema and structured content."""
    if (offered.lean and not full) or not revision.structured or offered.output is None:
        return False
    return revision.any_structured or offered.output.get("type") == "object"


def finish_answer(answer: Any, call: Call, *, identity: Callable[[Revision], dict[str, Any]]) -> Any:
    """Return an answer as its revision requires; an encoded one is finished already. `identity(revision)` is the
    server's."""
    revision = call.session.revision  # none yet where a ping came before initialize
    if revision is None or not revision.result_types or not isinstance(answer, dict):
        return answer
    return add_result_type(answer, identity(revision))


def choose_structured(answer: Output, offered: Tool, revision: Revision, *, full: bool) -> Any:
    """Return the structured content that a client of `revision` gets, or None."""
    if answer.structured is None or not is_structured(offered, revision, full=full):
        return None
    return answer.structured


def format_output(answer: Output, revision: Revision, structured: Any) -> dict[str, Any]:
    """Return a tool's result for `tools/call`; `structured` is sent as data, unless it is None."""
    if answer.wire is not None:
        return {**answer.wire}
    content = [block if type(block) is Text else _format_block(block, revision) for block in answer.content]
    data: dict[str, Any] = {"content": content}
    if structured is not None:
        data["structuredContent"] = structured
    data["isError"] = answer.is_error
    return data


def format_task(task: StoredTask) -> dict[str, Any]:
    """Return the result that creates a task (extension tasks, "Tasks")."""
    data: dict[str, Any] = {
        "taskId": task.id,
        "status": task.status,
        "createdAt": _format_time(task.created),
        "lastUpdatedAt": _format_time(task.updated),
        "ttlMs": round((task.expires - task.created) * 1000),
        "pollIntervalMs": POLL,
    }
    if task.message is not None:
        data["statusMessage"] = task.message
    return data


def format_detailed_task(task: StoredTask) -> dict[str, Any]:
    """Return a task with its status, result, error or questions."""
    data = format_task(task)
    payload = task.questions if task.status == "input_required" else task.outcome
    if payload is not None:
        data[PAYLOADS[task.status]] = msgspec.Raw(payload)
    return data


def add_result_type(result: dict[str, Any], server: dict[str, Any]) -> dict[str, Any]:
    """Add the result type and `server` to a result, if the revision has them."""
    if "resultType" not in result:
        result["resultType"] = "complete"
    meta = result.get("_meta")
    if meta is None:
        result["_meta"] = {SERVER: server}
    else:
        meta[SERVER] = server
    return result


def add_cache_hints(result: dict[str, Any], revision: Revision, milliseconds: int) -> dict[str, Any]:
    if not revision.caching:
        return result
    return {**result, "ttlMs": milliseconds, "cacheScope": "private"}


def format_implementation(name: str, version: str, revision: Revision) -> dict[str, Any]:
    data = {"name": name, "version": version}
    if revision.titles:
        data["title"] = "Toolgate" if name == "toolgate" else name
    return data


def _format_part(offered: Tool | Prompt | Resource | ResourceLink, revision: Revision) -> dict[str, Any]:
    """Return the members that all parts share."""
    data: dict[str, Any] = {"name": offered.name}
    if revision.titles and offered.title is not None:
        data["title"] = offered.title
    if offered.description is not None:
        data["description"] = offered.description
    if revision.icons and offered.icons:
        data["icons"] = offered.icons
    if revision.part_meta and offered.meta:
        data["_meta"] = offered.meta
    return data


def _format_resource_part(offered: Resource | ResourceLink, revision: Revision) -> dict[str, Any]:
    data = _format_part(offered, revision)
    if offered.mime_type is not None:
        data["mimeType"] = offered.mime_type
    if offered.annotations:
        data["annotations"] = offered.annotations
    return data


_NEWEST = REVISIONS[SUPPORTED[0]]  # it has every feature
_FORMATTERS: Mapping[str, Callable[[Any, Revision], dict[str, Any]]] = {
    Tool.kind: format_tool,
    Prompt.kind: format_prompt,
    Resource.kind: format_template,
    EventType.kind: format_event_type,
}


def _format_time(seconds: float) -> str:
    """Return the time in ISO 8601, UTC."""
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _format_block(block: Content, revision: Revision) -> Content:
    """Return the block, or a text in its place if the revision has no such block."""
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

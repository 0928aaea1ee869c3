"""Define the content blocks of an answer with the protocol's field names.

Shapes: `ContentBlock` of the MCP schema (server/tools, "Tool Result"). Binary data is held as bytes and turned into
base64 when the message is encoded, so that it is copied once.
"""

from collections.abc import Mapping
from typing import Any

import msgspec

ROLES = ("user", "assistant")


class Block(msgspec.Struct, frozen=True, tag_field="type", rename="camel", omit_defaults=True):
    """The base of all blocks: optional `annotations` (audience, priority, lastModified)."""


class Text(Block, frozen=True, tag="text"):
    text: str
    annotations: dict[str, Any] | None = None


class Image(Block, frozen=True, tag="image"):
    data: bytes
    mime_type: str
    annotations: dict[str, Any] | None = None


class Audio(Block, frozen=True, tag="audio"):
    data: bytes
    mime_type: str
    annotations: dict[str, Any] | None = None


class Contents(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """The content of a resource: `text` or `blob`, never both."""

    uri: str
    mime_type: str | None = None
    text: str | None = None
    blob: bytes | None = None
    meta: dict[str, Any] | None = msgspec.field(default=None, name="_meta")


class EmbeddedResource(Block, frozen=True, tag="resource"):
    resource: Contents
    annotations: dict[str, Any] | None = None


class ResourceLink(Block, frozen=True, tag="resource_link"):
    uri: str
    name: str
    title: str | None = None
    description: str | None = None
    mime_type: str | None = None
    size: int | None = None
    annotations: dict[str, Any] | None = None
    icons: list[dict[str, Any]] | None = None
    meta: dict[str, Any] | None = msgspec.field(default=None, name="_meta")


Content = Text | Image | Audio | EmbeddedResource | ResourceLink


class Continuation(msgspec.Struct, frozen=True):
    """What a call has begun and leaves running, for a client that waits for its end as for a task.

    `key` names it, as the notice of its end does. `message` is the task's status text. `state` is what `Tool.following`
    and `Tool.stopping` take, also after a restart.
    """

    key: str
    message: str
    state: str


class Output(msgspec.Struct, frozen=True):
    """What a tool returns: blocks for the model, and structured content if the tool declares an output schema.

    `structured` is any JSON-like value, struct or dataclass that fits the output schema, or None. `is_error` says that
    the tool's own work failed. `continuation`: what goes on, of a built-in tool. `wire`: the result as another server
    wrote it, sent unchanged in place of all this. `decision`: as that of a `ToolError`.
    """

    content: list[Content]
    structured: Any = None
    is_error: bool = False
    continuation: Continuation | None = None
    wire: Mapping[str, Any] | None = None
    decision: str = ""


class Message(msgspec.Struct, frozen=True):
    """One message of a prompt. `role` is "user" or "assistant" (MCP has no "system"); a string becomes a Text. Raises
    ValueError for any other role."""

    role: str
    content: Content | str

    def __post_init__(self) -> None:
        if self.role not in ROLES:
            raise ValueError(f"the role of a prompt's message is 'user' or 'assistant', not {self.role!r}"[:200])

"""Represent parts of a plugin in another process: each method is a request of MCP to it.

The original parts validate, cast and shape arguments and results in that process. What a client of an older revision
does not get is left out here, as of other parts.
"""

from collections.abc import AsyncIterator, Mapping
from typing import Any, Protocol

import msgspec

from toolgate.server.features.mounts.plugins.data import (
    LINKS,
    PART,
    EventData,
    ListedPart,
    PartData,
    PromptData,
    ResourceData,
    ToolData,
    ToolHints,
)
from toolgate.server.features.mounts.upstream.messages import Members
from toolgate.tools.api.completion import Completion, Completions, to_completion
from toolgate.tools.api.content import Content, Contents, Message, Output, ResourceLink
from toolgate.tools.api.context.context import Context
from toolgate.tools.api.errors import CannotAskError, ToolError
from toolgate.tools.api.event import EventType
from toolgate.tools.api.function import Function
from toolgate.tools.api.prompt import Prompt
from toolgate.tools.api.registry import Part
from toolgate.tools.api.resource import Resource
from toolgate.tools.api.tool import Tool, ToolAnnotations, create_refusal


class PluginFaultError(Exception):
    """A plugin raised an unexpected exception; the text is its traceback."""


class RemotePlugin(Protocol):
    """Calls the original parts."""

    @property
    def name(self) -> str: ...

    async def call(self, method: str, params: Mapping[str, Any], context: Context) -> Members: ...

    def watch(self, uri: str, variables: Mapping[str, str], context: Context) -> AsyncIterator[object]: ...


class RemoteFunction(Function):
    """Represent a function of the file `source`; the parts below don't call it."""

    __slots__ = ("_source",)

    def __init__(self, source: str, *, has_context: bool = False) -> None:
        super().__init__(_never_called)
        self.context = "ctx" if has_context else None
        self._source = source

    @property
    def source(self) -> str:
        return self._source


class RemoteTool(Tool, kw_only=True, eq=False):
    remote: RemotePlugin

    async def run(self, arguments: Mapping[str, Any], context: Context, *, is_valid: bool = False) -> Output:
        try:
            result = await self.remote.call("tools/call", {"name": self.name, "arguments": arguments}, context)
        except CannotAskError:
            raise
        except ToolError as error:  # from its process
            return create_refusal(error)
        return Output(
            _read(self.remote, result, "content", list[Content]),
            _read(self.remote, result, "structuredContent", Any),
            _read(self.remote, result, "isError", bool),
        )


class RemotePrompt(Prompt, kw_only=True, eq=False):
    remote: RemotePlugin

    def __post_init__(self) -> None:
        self.completions = RemoteCompletions(self, self.remote)

    async def get(self, arguments: Mapping[str, Any], context: Context) -> list[Message]:
        result = await self.remote.call("prompts/get", {"name": self.name, "arguments": arguments}, context)
        found: list[Message] = _read(self.remote, result, "messages", list[Message])
        return found


class RemoteResource(Resource, kw_only=True, eq=False):
    remote: RemotePlugin
    is_watched: bool

    def __post_init__(self) -> None:
        self.completions = RemoteCompletions(self, self.remote)

    async def read(self, uri: str, variables: Mapping[str, str], context: Context) -> list[Contents]:
        result = await self.remote.call("resources/read", {"uri": uri}, context)
        found: list[Contents] = _read(self.remote, result, "contents", list[Contents])
        return found

    async def list_links(self, context: Context) -> list[ResourceLink]:
        if self.lists is None:
            return []
        result = await self.remote.call(LINKS, {"uriTemplate": self.uri}, context)
        return self.valid_links(_read(self.remote, result, "resources", list[ResourceLink]))

    def watch(self, variables: Mapping[str, str], context: Context) -> AsyncIterator[object] | None:
        return self.remote.watch(self.uri, variables, context) if self.is_watched else None

    def _verify_parameters(self, function: Function) -> None:
        """Do nothing: the plugin's process verifies the original part."""


class RemoteCompletions(Completions):
    """The completions of a remote part."""

    def __init__(self, part: RemotePrompt | RemoteResource, plugin: RemotePlugin) -> None:
        super().__init__(_never_called, tuple)
        self._far = part
        self._plugin = plugin

    async def complete(self, name: str, value: str, arguments: Mapping[str, str], context: Context) -> Completion:
        part = self._far
        ref = {"type": "ref/prompt", "name": part.key} if isinstance(part, Prompt) else {"uri": part.key}
        params = {
            "ref": {"type": "ref/resource", **ref},
            "argument": {"name": name, "value": value},
            "context": {"arguments": arguments},
        }
        result = await self._plugin.call("completion/complete", params, context)
        return to_completion(_read(self._plugin, result, "completion", Completion))  # the process is not trusted


def create_remote_part(item: ListedPart, plugin: RemotePlugin) -> Part:
    """Return the part that the process lists. Raises KeyError, msgspec.ValidationError."""
    data: PartData = msgspec.convert(item.meta[PART], PartData)
    match data:
        case ToolData():
            return _create_tool(item, data, plugin)
        case PromptData():
            return _create_prompt(item, data, plugin)
        case ResourceData():
            return _create_resource(item, data, plugin)
        case EventData():
            return _create_event(item, data)


def _read(plugin: RemotePlugin, result: Members, name: str, kind: Any) -> Any:
    """Return a member of a result; one that is missing is null. Raises PluginFaultError for one of another kind."""
    try:
        return msgspec.json.decode(result.get(name, b"null"), type=kind)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise PluginFaultError(f"plugin {plugin.name} returned an invalid {name}: {error}") from None


def _get_shared(item: ListedPart, data: PartData) -> dict[str, Any]:
    """Return the fields that every kind of part has."""
    meta = {name: value for name, value in item.meta.items() if name != PART}
    return {"name": item.name, "description": item.description, "scope": data.scope, "meta": meta or None}


def _create_tool(item: ListedPart, data: ToolData, plugin: RemotePlugin) -> RemoteTool:
    hints = msgspec.convert(item.annotations, ToolHints)
    tool = RemoteTool(
        RemoteFunction(data.source, has_context=data.has_context),
        **_get_shared(item, data),
        title=item.title,
        icons=item.icons,
        annotations=ToolAnnotations(*msgspec.structs.astuple(hints)),
        output_type=item.output_schema,
        as_task=data.as_task,
        lean=data.lean,
        in_plan=data.in_plan,
        remote=plugin,
    )
    tool.input = item.input_schema  # verified and compiled in the process
    tool.parameters = data.parameters
    return tool


def _create_prompt(item: ListedPart, data: PromptData, plugin: RemotePlugin) -> RemotePrompt:
    return RemotePrompt(
        RemoteFunction(data.source),
        **_get_shared(item, data),
        title=item.title,
        icons=item.icons,
        role=data.role,
        declared_arguments=item.arguments,
        remote=plugin,
    )


def _create_resource(item: ListedPart, data: ResourceData, plugin: RemotePlugin) -> RemoteResource:
    function = RemoteFunction(data.source)
    return RemoteResource(
        function,
        **_get_shared(item, data),
        title=item.title,
        icons=item.icons,
        uri=item.uri or item.uri_template,
        mime_type=item.mime_type,
        annotations=item.annotations,
        lists=function if data.lists else None,
        remote=plugin,
        is_watched=data.watches,
    )


def _create_event(item: ListedPart, data: EventData) -> EventType:
    """Return a type of events. The server checks arguments and payloads itself: the process is not trusted."""
    shared = _get_shared(item, data)
    event = EventType(RemoteFunction(data.source), **shared, title=data.title, payload_type=item.payload_schema)
    event.input = item.input_schema
    return event


async def _never_called() -> Any:
    raise AssertionError("a function of another process was called in this one")

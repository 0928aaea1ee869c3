"""Represent parts of a plugin in another process: each method is a call to it.

The original parts validate, cast and shape arguments and results in that process.
"""

from collections.abc import AsyncIterator, Mapping
from typing import Any, Protocol

from toolgate.server.plugins.isolation.messages import EventData, PartData, PromptData, ResourceData, ToolData
from toolgate.tools.api.completion import Completion, Completions, to_completion
from toolgate.tools.api.content import Contents, Message, Output, ResourceLink
from toolgate.tools.api.context.context import Context
from toolgate.tools.api.errors import CannotAskError, ToolError
from toolgate.tools.api.event import EventType
from toolgate.tools.api.function import Function
from toolgate.tools.api.prompt import Prompt
from toolgate.tools.api.registry import Part
from toolgate.tools.api.resource import Resource
from toolgate.tools.api.tool import Tool, create_refusal


class RemotePlugin(Protocol):
    """Calls the original parts."""

    async def call(self, verb: str, kind: str, key: str, given: Any, context: Context, gives: Any) -> Any: ...

    def watch(self, key: str, variables: Mapping[str, str], context: Context) -> AsyncIterator[object]: ...


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
            output: Output = await self.remote.call("run", "tools", self.name, arguments, context, Output)
        except CannotAskError:
            raise
        except ToolError as error:  # from its process
            return create_refusal(error)
        return output


class RemotePrompt(Prompt, kw_only=True, eq=False):
    remote: RemotePlugin

    def __post_init__(self) -> None:
        self.completions = RemoteCompletions(self, self.remote)

    async def get(self, arguments: Mapping[str, Any], context: Context) -> list[Message]:
        result: list[Message] = await self.remote.call("get", "prompts", self.name, arguments, context, list[Message])
        return result


class RemoteResource(Resource, kw_only=True, eq=False):
    remote: RemotePlugin
    is_watched: bool

    def __post_init__(self) -> None:
        self.completions = RemoteCompletions(self, self.remote)

    async def read(self, uri: str, variables: Mapping[str, str], context: Context) -> list[Contents]:
        given = {"uri": uri, "variables": variables}
        result: list[Contents] = await self.remote.call("read", "resources", self.uri, given, context, list[Contents])
        return result

    async def list_links(self, context: Context) -> list[ResourceLink]:
        if self.lists is None:
            return []
        links: list[ResourceLink] = await self.remote.call(
            "list", "resources", self.uri, None, context, list[ResourceLink]
        )
        return self.valid_links(links)

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
        given = {"name": name, "value": value, "arguments": arguments}
        completion: Completion = await self._plugin.call(
            "complete", self._far.kind, self._far.key, given, context, Completion
        )
        return to_completion(completion)  # the process is not trusted


def create_remote_part(data: PartData, plugin: RemotePlugin) -> Part:
    """Return the part for `data`."""
    match data:
        case ToolData():
            return _create_tool(data, plugin)
        case PromptData():
            return _create_prompt(data, plugin)
        case ResourceData():
            return _create_resource(data, plugin)
        case EventData():
            return _create_event(data)


def _get_shared(data: PartData) -> dict[str, Any]:
    """Return the fields that every kind of part has."""
    words = {"name": data.name, "title": data.title, "description": data.description}
    return {**words, "scope": data.scope, "meta": data.meta}


def _create_tool(data: ToolData, plugin: RemotePlugin) -> RemoteTool:
    tool = RemoteTool(
        RemoteFunction(data.source, has_context=data.has_context),
        **_get_shared(data),
        icons=data.icons,
        annotations=data.annotations,
        output_type=data.output,
        as_task=data.as_task,
        lean=data.lean,
        in_plan=data.in_plan,
        remote=plugin,
    )
    tool.input = data.input  # verified and compiled in the process
    tool.parameters = data.parameters
    return tool


def _create_prompt(data: PromptData, plugin: RemotePlugin) -> RemotePrompt:
    return RemotePrompt(
        RemoteFunction(data.source),
        **_get_shared(data),
        icons=data.icons,
        role=data.role,
        declared_arguments=data.arguments,
        remote=plugin,
    )


def _create_resource(data: ResourceData, plugin: RemotePlugin) -> RemoteResource:
    function = RemoteFunction(data.source)
    return RemoteResource(
        function,
        **_get_shared(data),
        icons=data.icons,
        uri=data.uri,
        mime_type=data.mime_type,
        annotations=data.annotations,
        lists=function if data.lists else None,
        remote=plugin,
        is_watched=data.watches,
    )


def _create_event(data: EventData) -> EventType:
    """Return a type of events. The server checks arguments and payloads itself: the process is not trusted."""
    event = EventType(RemoteFunction(data.source), **_get_shared(data), payload_type=data.payload)
    event.input = data.input
    return event


async def _never_called() -> Any:
    raise AssertionError("a function of another process was called in this one")

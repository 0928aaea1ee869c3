"""Represent parts of a plugin in another process: each method is a call to it.

The original parts validate, cast and shape arguments and results in that process.
"""

from collections.abc import AsyncIterator, Mapping
from typing import Any, Protocol

from toolgate.server.plugins.isolation.messages import EventData, PartData, PromptData, ResourceData, ToolData
from toolgate.tools.api.completion import Completion, Completions, to_completion
from toolgate.tools.api.content import Contents, Message, Output, ResourceLink, Text
from toolgate.tools.api.context import Context
from toolgate.tools.api.errors import CannotAskError, ToolError
from toolgate.tools.api.event import EventType
from toolgate.tools.api.function import Function
from toolgate.tools.api.prompt import Prompt
from toolgate.tools.api.registry import Part
from toolgate.tools.api.resource import Resource
from toolgate.tools.api.tool import Tool


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


class RemoteTool(Tool):
    def __init__(self, data: ToolData, plugin: RemotePlugin) -> None:
        function = RemoteFunction(data.source, has_context=data.has_context)
        words = (data.name, data.title, data.description, data.annotations)
        super().__init__(function, *words, scope=data.scope, icons=data.icons, meta=data.meta)
        self.output_type, self.as_task, self.lean = data.output, data.as_task, data.lean
        self.in_plan = data.in_plan
        self.input = data.input  # verified and compiled in the process
        self._plugin = plugin

    async def run(self, arguments: Mapping[str, Any], context: Context) -> Output:
        try:
            output: Output = await self._plugin.call("run", "tools", self.name, arguments, context, Output)
        except CannotAskError:
            raise
        except ToolError as error:  # from its process
            return Output([Text(error.text)], is_error=True)
        return output


class RemotePrompt(Prompt):
    def __init__(self, data: PromptData, plugin: RemotePlugin) -> None:
        function = RemoteFunction(data.source)
        words = (data.name, data.title, data.description)
        super().__init__(function, *words, scope=data.scope, icons=data.icons, meta=data.meta, role=data.role)
        self.declared_arguments = data.arguments
        self.completions = RemoteCompletions(self, plugin)
        self._plugin = plugin

    async def get(self, arguments: Mapping[str, Any], context: Context) -> list[Message]:
        result: list[Message] = await self._plugin.call("get", "prompts", self.name, arguments, context, list[Message])
        return result


class RemoteResource(Resource):
    def __init__(self, data: ResourceData, plugin: RemotePlugin) -> None:
        function = RemoteFunction(data.source)
        words = (data.name, data.title, data.description, data.uri, data.mime_type)
        super().__init__(function, *words, scope=data.scope, icons=data.icons, meta=data.meta)
        self.annotations = data.annotations
        self.completions = RemoteCompletions(self, plugin)
        self.lists = function if data.lists else None
        self._is_watched = data.watches
        self._plugin = plugin

    async def read(self, uri: str, variables: Mapping[str, str], context: Context) -> list[Contents]:
        given = {"uri": uri, "variables": variables}
        result: list[Contents] = await self._plugin.call("read", "resources", self.uri, given, context, list[Contents])
        return result

    async def list_links(self, context: Context) -> list[ResourceLink]:
        if self.lists is None:
            return []
        links: list[ResourceLink] = await self._plugin.call(
            "list", "resources", self.uri, None, context, list[ResourceLink]
        )
        return self.valid_links(links)

    def watch(self, variables: Mapping[str, str], context: Context) -> AsyncIterator[object] | None:
        return self._plugin.watch(self.uri, variables, context) if self._is_watched else None

    def _verify_parameters(self, function: Function) -> None:
        """Do nothing: the plugin's process verifies the original part."""


class RemoteEvent(EventType):
    """A type of events. The server checks arguments and payloads itself: the process is not trusted."""

    def __init__(self, data: EventData) -> None:
        words = (data.name, data.title, data.description)
        super().__init__(RemoteFunction(data.source), *words, data.payload, scope=data.scope, meta=data.meta)
        self.input = data.input


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
            return RemoteTool(data, plugin)
        case PromptData():
            return RemotePrompt(data, plugin)
        case ResourceData():
            return RemoteResource(data, plugin)
        case EventData():
            return RemoteEvent(data)


async def _never_called() -> Any:
    raise AssertionError("a function of another process was called in this one")

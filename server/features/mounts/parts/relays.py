"""Ask a mounted server for what a part of it does."""

from collections.abc import AsyncIterator, Mapping, Sequence
from functools import cached_property
from typing import Any

from toolgate.server.features.mounts.mount.requests import RequestForwarder
from toolgate.server.features.mounts.parts.rewriting import UriRewriter
from toolgate.server.features.mounts.upstream.envelope import repeat_arguments
from toolgate.server.features.mounts.upstream.errors import MountError
from toolgate.tools.api.context.context import Context
from toolgate.tools.api.errors import NotFound
from toolgate.tools.api.schema.schema import UnusableSchemaError, find_mirrored_headers

ORIGINAL = "toolgate/original"  # the `_meta` with the name at the mounted server
COMPLETE = "completion/complete"


class MountedRelay:
    """The way to one part: `original` names it at its mount. `wire` is how it is listed here."""

    method = ""
    _is_task = False

    def __init__(
        self, forwarder: RequestForwarder, original: str, wire: Mapping[str, Any], rewriter: UriRewriter
    ) -> None:
        self._forwarder = forwarder
        self._rewriter = rewriter
        self.original = original
        self.wire = wire

    @property
    def mount(self) -> str:
        """The name of the mount."""
        return self._forwarder.mount_name

    @property
    def is_repeatable(self) -> bool:
        """Whether the request may be sent again if its answer was lost."""
        return True

    async def ask(self, params: Mapping[str, Any], context: Context) -> Mapping[str, Any]:
        return await self._send({"name": self.original, **params}, context)

    async def ask_about(self, method: str, params: Mapping[str, Any], context: Context) -> Mapping[str, Any]:
        raise NotFound("only a resource has a URI")

    async def _send(
        self, params: Mapping[str, Any], context: Context, headers: Mapping[str, str] = {}, method: str = ""
    ) -> Mapping[str, Any]:
        result = await self._forwarder.forward(
            method or self.method,
            params,
            context,
            original=self.original,
            is_repeatable=self.is_repeatable,
            as_task=self._is_task,
            headers=headers,
        )
        try:
            return self._rewriter.rewrite_result(result)
        except RecursionError:
            raise MountError("BAD_MESSAGE", "its result is nested too deeply") from None

    def watch(self, uri: str, context: Context) -> AsyncIterator[object] | None:
        """Return None: only resources can be followed."""
        return None

    async def complete(self, params: Mapping[str, Any], context: Context) -> Mapping[str, Any]:
        """Return the mounted server's suggestions."""
        others = {name: params[name] for name in ("argument", "context") if name in params}
        sent = {"ref": self._reference(), **others}
        return await self._forwarder.forward(COMPLETE, sent, context, original=self.original, is_repeatable=True)

    def _reference(self) -> dict[str, str]:
        return {"type": "ref/prompt", "name": self.original}


class ToolRelay(MountedRelay):
    """A tool. The mounted server's own hints say whether a call may be repeated, and its schema which arguments
    headers repeat."""

    method = "tools/call"

    def __init__(
        self,
        forwarder: RequestForwarder,
        original: str,
        wire: Mapping[str, Any],
        rewriter: UriRewriter,
        *,
        is_task: bool = False,
    ) -> None:
        """`is_task`: the mounted server runs it as a task only."""
        super().__init__(forwarder, original, wire, rewriter)
        self._is_task = is_task

    @cached_property
    def _mirrored_headers(self) -> Mapping[str, Sequence[str]]:
        try:
            return find_mirrored_headers(self.wire["inputSchema"])
        except UnusableSchemaError:
            return {}

    @property
    def is_repeatable(self) -> bool:
        hints = self.wire.get("annotations")
        return isinstance(hints, dict) and (hints.get("readOnlyHint") is True or hints.get("idempotentHint") is True)

    async def ask(self, params: Mapping[str, Any], context: Context) -> Mapping[str, Any]:
        headers = repeat_arguments(params, self._mirrored_headers)
        return await self._send({"name": self.original, "arguments": params}, context, headers)


class PromptRelay(MountedRelay):
    method = "prompts/get"

    async def ask(self, params: Mapping[str, Any], context: Context) -> Mapping[str, Any]:
        return await super().ask({"arguments": params} if params else {}, context)


class ResourceRelay(MountedRelay):
    """A resource, or a template: the request brings the URI, as it is served here."""

    method = "resources/read"

    async def ask(self, params: Mapping[str, Any], context: Context) -> Mapping[str, Any]:
        return await self._send({"uri": self.restore(params["uri"])}, context)

    async def ask_about(self, method: str, params: Mapping[str, Any], context: Context) -> Mapping[str, Any]:
        return await self._send({**params, "uri": self.restore(params["uri"])}, context, method=method)

    def watch(self, uri: str, context: Context) -> AsyncIterator[object]:
        """Yield at each change that the mounted server tells of."""
        return self._forwarder.watch(self.restore(uri), context)

    def restore(self, uri: str) -> str:
        """Return the mount's own form of a URI."""
        served: str = self.wire.get("uri") or self.wire["uriTemplate"]
        return self._rewriter.restore(uri, served, self.original)

    def _reference(self) -> dict[str, str]:
        return {"type": "ref/resource", "uri": self.original}

"""Give a running tool its services, progress, logs, and questions to the person.

JSON-RPC, revisions and transports are behind a `CallPeer` that the server passes in.
"""

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any, Protocol, TypeVar

import msgspec
from msgspec.structs import replace

from toolgate.tools.api.content import Continuation
from toolgate.tools.api.context.services import (
    Callbacks,
    CallerState,
    CallerWorkspace,
    PageFetcher,
    Plan,
    Services,
    Settings,
    Todos,
)
from toolgate.tools.api.errors import ToolError, UnansweredError
from toolgate.tools.api.schema import schema as schemas
from toolgate.tools.api.schema.conversion import convert_form

T = TypeVar("T")
ELICIT = "elicitation/create"


class Elicited(msgspec.Struct, frozen=True):
    """A person's answer: `action` is "accept", "decline" or "cancel"; `content` is the form's values when accepted."""

    action: str
    content: Mapping[str, Any]


class Caller(msgspec.Struct, frozen=True):
    """Who makes a call, for a part that passes it on to another server.

    capabilities: what the client declared of itself
    meta: the request's `_meta`
    session: names its session; "" if it has none
    scopes: what the caller may do; None: everything
    log_level: the least that the client wants to be told of logs, such as "info"; None: nothing
    """

    capabilities: Mapping[str, Any] = {}
    meta: Mapping[str, Any] = {}
    session: str = ""
    scopes: frozenset[str] | None = None
    log_level: str | None = None


class CallPeer(Protocol):
    """The client's end of one call, implemented by the server."""

    @property
    def caller(self) -> Caller: ...

    @property
    def wants_progress(self) -> bool: ...

    @property
    def is_held(self) -> bool: ...  # whether the call has a hold limit: a task, or a call that can become one, has none

    def can(self, capability: str) -> bool: ...  # declared by the client, or the server can ask the person elsewhere
    def knows(self, feature: str) -> bool: ...  # a column of the revisions table, such as "multi_select"
    def progress(self, progress: float, total: float | None, message: str | None) -> None: ...
    def log(self, level: str, data: Any, logger: str | None) -> None: ...
    def close_stream(self) -> None: ...
    def when_changed(self, tell: Callable[[], None]) -> None: ...  # called when `is_held` or `wants_progress` changes
    def complete_link(self, key: str) -> None: ...  # what the question `key` had the person open is done
    def at_once(self, key: str) -> bool: ...  # whether the answer to `key` came faster than a person reads
    async def as_task(self, required: bool) -> bool: ...
    async def follow_as_task(self, continuation: Continuation) -> bool: ...
    async def ask(self, requests: Mapping[str, dict[str, Any]], timeout: float | None) -> dict[str, Any]: ...
    async def once(self, key: str, function: Callable[[], Awaitable[Any]]) -> Any: ...


class Context:
    """The call that a tool runs in. A parameter annotated `Context` receives it and stays out of the schema.

    Revision 2026-07-28 has no requests to the client. There a question ends the call, and the client calls again with
    the answer. **The tool then runs again from its first line.** Earlier answers are replayed in order. Wrap work that
    must run once in `await ctx.once(key, function)`.
    """

    __slots__ = ("_peer", "_question_count", "_services", "_since")

    def __init__(self, services: Services, peer: CallPeer, since: float | None = None) -> None:
        self._services = services
        self._peer = peer
        self._since = since  # when a subscription began, in seconds since 1970: its changes count from then on
        self._question_count = 0

    @property
    def principal(self) -> str:
        """The principal of the call: an opaque id, stable across sessions and restarts."""
        return self._services.principal

    @property
    def caller(self) -> Caller:
        """What the client said of itself, for work that another server does."""
        return self._peer.caller

    @property
    def caller_state(self) -> CallerState:
        """The caller's working directory and plan."""
        return self._services.caller_state

    @property
    def workspace(self) -> CallerWorkspace:
        return self._services.workspace

    @property
    def todos(self) -> Todos:
        return self._services.todos

    @property
    def plan(self) -> Plan:
        return self._services.plan

    @property
    def callbacks(self) -> Callbacks:
        return self._services.callbacks

    @property
    def web(self) -> PageFetcher:
        return self._services.web

    def service(self, kind: type[T]) -> T:
        """Return the built-in tools' service of this type. Raises ToolError if there is none, as for a plugin."""
        found: T | None = self._services.built_in.get(kind)
        if found is None:
            raise ToolError(f"ctx.service({kind.__name__}) is not available in a plugin's own process")
        return found

    @property
    def settings(self) -> Settings:
        return self._services.settings

    @property
    def hold(self) -> float | None:
        """The most seconds that this call may be held, or None for a task or a call that may become one. The value can
        change while the call waits."""
        return self._services.settings.hold if self._peer.is_held else None

    @property
    def is_read_only(self) -> bool:
        """Whether the tool must change nothing, since a plan is active (`in_plan="read-only"`)."""
        return self._services.is_read_only

    def read_only(self) -> "Context":
        """Return a context for work that changes nothing."""
        return Context(replace(self._services, is_read_only=True), self._peer, self._since)

    def after(self, seconds: float) -> "Context":
        """Return a context for work that begins `seconds` into the call: its hold is shorter by that."""
        settings = self._services.settings
        left = replace(settings, hold=max(settings.hold - seconds, 0.0))
        return Context(replace(self._services, settings=left), self._peer, self._since)

    @property
    def wants_progress(self) -> bool:
        """Whether the caller sent a progress token. A tool may use it only to skip the cost of progress."""
        return self._peer.wants_progress

    def can(self, capability: str) -> bool:
        """Return whether the client can be asked for "elicitation", "sampling" or "roots", or opens links
        ("elicitation.url")."""
        return self._peer.can(capability)

    def knows(self, feature: str) -> bool:
        """Return whether the caller's protocol revision has `feature`, such as "multi_select", or the server's page has
        it where that shows the caller's forms."""
        return self._peer.knows(feature)

    def updated(self, uri: str) -> None:
        """Tell the caller's clients that subscribed to the resource `uri` that it changed."""
        self._services.notify_updated(uri)

    def watch_path(self, path: Path) -> AsyncIterator[object]:
        """Yield each time the file or folder `path` changes, appears or goes. The caller checks the path."""
        return self._services.watch_path(path, self._since)

    def list_changed(self) -> None:
        """Tell the caller's clients that a template's list (`listing`) changed."""
        self._services.notify_list_changed()

    def close_stream(self) -> None:
        """Let the client disconnect while the call goes on, and come back for the answer. Only Streamable HTTP of
        2025-11-25 supports that; elsewhere this does nothing."""
        self._peer.close_stream()

    async def progress(self, progress: float, total: float | None = None, message: str | None = None) -> None:
        """Report progress, which must grow. It is dropped without a progress token or if the client is slow."""
        self._peer.progress(progress, total, message)

    async def log(self, level: str, data: Any, logger: str | None = None) -> None:
        """Send `data` (any JSON value) to the client's log at one of the eight RFC 5424 levels, "debug" upwards. Raises
        ValueError when the level is none of the eight."""
        self._peer.log(level, data, logger)

    async def as_task(self, *, required: bool = False) -> bool:
        """Make the rest of this call a task if the client supports tasks, and return whether it is one.

        The client gets an answer at once and asks for the result later (2026-07-28, extension
        io.modelcontextprotocol/tasks). From then on only the task's own time limit applies. Progress becomes the task's
        status, and a question waits without ending the call.

        Raises TasksUnsupportedError when `required` and the client supports no tasks. Raises ToolError when there are
        too many tasks or the task can't be stored.
        """
        return await self._peer.as_task(required)

    async def follow_as_task(self, continuation: Continuation) -> bool:
        """Make what this call left running a task, if its end wakes the client's model. Return whether it is one."""
        return await self._peer.follow_as_task(continuation)

    def when_changed(self, tell: Callable[[], None]) -> None:
        """Call `tell` when `hold` or `wants_progress` changes: the call became a task, or can't."""
        self._peer.when_changed(tell)

    async def elicit(
        self, message: str, schema: dict[str, Any], *, key: str | None = None, timeout: float | None = None
    ) -> Elicited:
        """Ask the person by a form. `schema` is a flat object of primitive properties (client/elicitation).

        If the client shows no forms, the server's own page shows the form to the person.

        Raises CannotAskError when the client declared no elicitation. Raises UnansweredError when no answer came within
        `timeout` seconds (up to 2025-11-25; default: the call's hold) or the answer does not fit `schema`. Raises
        StillWaitingError when the question stays on the page: the same call, made again, takes the answer.
        """
        params = {"message": message, "requestedSchema": schema}
        answer = await self._ask(ELICIT, params, key, timeout)
        return Elicited(answer.get("action", "cancel"), convert_form(answer.get("content") or {}, schema))

    async def sample(
        self, params: dict[str, Any], *, key: str | None = None, timeout: float | None = None
    ) -> dict[str, Any]:
        """Ask the client's model to write: `params` and the result are those of sampling/createMessage."""
        return await self._ask("sampling/createMessage", params, key, timeout)

    async def roots(self, *, key: str | None = None, timeout: float | None = None) -> list[dict[str, Any]]:
        """Return the folders that the client works in: `[{"uri": …, "name"?: …}]`."""
        answer = await self._ask("roots/list", {}, key, timeout)
        roots: list[dict[str, Any]] = answer.get("roots") or []
        return roots

    async def ask(self, requests: Mapping[str, dict[str, Any]], *, timeout: float | None = None) -> dict[str, Any]:
        """Ask several questions at once: `{key: {"method": …, "params": …}}` → `{key: result}`."""
        answers = await self._peer.ask(requests, timeout)
        return {key: _check_answer(requests[key], answer) for key, answer in answers.items()}

    def complete_link(self, key: str) -> None:
        """Tell the client that what its person was to do behind a link is done: `key` is that of the question."""
        self._peer.complete_link(key)

    def answered_at_once(self, key: str) -> bool:
        """Return whether the answer to `key` is known to have come faster than a person can read."""
        return self._peer.at_once(key)

    async def once(self, key: str, function: Callable[[], Awaitable[T]]) -> T:
        """Run `function` once per call: a retry gets its first result back (a JSON value)."""
        result: T = await self._peer.once(key, function)
        return result

    async def _ask(self, method: str, params: dict[str, Any], key: str | None, timeout: float | None) -> dict[str, Any]:
        self._question_count += 1
        key = key or f"question-{self._question_count}"
        answer: dict[str, Any] = (await self.ask({key: {"method": method, "params": params}}, timeout=timeout))[key]
        return answer


def _check_answer(request: Mapping[str, Any], answer: dict[str, Any]) -> dict[str, Any]:
    """Return the answer without the nulls that some clients send for empty fields of an accepted form. Raises
    UnansweredError for a form whose values do not fit."""
    form = (request.get("params") or {}).get("requestedSchema")
    if request.get("method") != ELICIT or answer.get("action") != "accept" or not isinstance(form, dict):
        return answer
    content = answer.get("content") or {}
    try:
        if None in content.values():
            never_null = schemas.never_null(form)
            content = {name: value for name, value in content.items() if value is not None or name not in never_null}
        finding = schemas.compile_check(form, "field")(content)
    except schemas.UnusableSchemaError:  # the tool's own schema is at fault, not the answer
        return answer
    if finding is not None:
        raise UnansweredError(f"the answer does not fit the form that was sent: {finding}", {"elicitation": {}})
    return {**answer, "content": content}

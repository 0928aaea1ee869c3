"""Call the plain or async function of a part, and hold the fields that tools, prompts and resources share."""

import inspect
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from functools import partial
from typing import Any, ClassVar, Protocol, Self

import msgspec

from toolgate.tools.api.concurrency.threads import Threads, ThreadsBusyError
from toolgate.tools.api.context.context import Context
from toolgate.tools.api.errors import ToolError, drop_tracebacks
from toolgate.tools.api.schema import schema
from toolgate.tools.api.scopes import PLUGINS

MAX_SYNC_CALLS = 32  # concurrent calls of a plain function, abandoned ones that still run included


class Parameters(msgspec.Struct, frozen=True):
    """The names of parameters that can be given, and of those that must."""

    names: frozenset[str]
    required: frozenset[str]


class Function:
    """A part's function. `context` names its Context parameter, if any; `file` overrides the file it was written in."""

    __slots__ = ("_file", "_is_async", "_threads", "call", "context")

    def __init__(self, call: Callable[..., Any], file: str | None = None) -> None:
        self.call = call
        self._file = file
        self.context = schema.context_parameter(call, Context)
        self._is_async = inspect.iscoroutinefunction(call)
        self._threads = Threads(MAX_SYNC_CALLS)

    @property
    def source(self) -> str:
        """The file of the function, for the text of a collision."""
        return self._file or inspect.getsourcefile(inspect.unwrap(self.call)) or "?"

    @property
    def description(self) -> str:
        """The function's docstring."""
        return inspect.cleandoc(self.call.__doc__ or "")

    @property
    def parameters(self) -> Parameters | None:
        """The parameters other than the context; None: it takes any (**kwargs)."""
        found = inspect.signature(self.call).parameters
        kinds = {parameter.kind for parameter in found.values()}
        if inspect.Parameter.VAR_KEYWORD in kinds:
            return None
        by_name = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
        given = {name: each for name, each in found.items() if each.kind in by_name and name != self.context}
        required = (name for name, each in given.items() if each.default is each.empty)
        return Parameters(frozenset(given), frozenset(required))

    def start(self, keywords: Mapping[str, Any], context: Context) -> Awaitable[Any]:
        """Return an awaitable for the function's result. It raises what the function raises: `find_refusal` tells
        whether that is a ToolError."""
        given = keywords if self.context is None else {**keywords, self.context: context}
        return self.call(**given) if self._is_async else self._run_in_thread(given)

    async def __call__(self, keywords: Mapping[str, Any], context: Context) -> Any:
        """Return the function's result. Raises ToolError, also for one raised inside a task group."""
        try:
            return await self.start(keywords, context)
        except ExceptionGroup as group:
            refusal = find_refusal(group)
            if refusal is None:
                raise
            drop_tracebacks(group)  # Python 3.11's task group holds it
        try:
            raise refusal  # not above: the group, which holds it, would be its context
        finally:
            del refusal  # its traceback holds this frame

    async def _run_in_thread(self, given: Mapping[str, Any]) -> Any:
        """Return the result of a function that may block."""
        try:
            return await self._threads.run(partial(self.call, **given))
        except ThreadsBusyError:
            raise ToolError(f"{MAX_SYNC_CALLS} calls of it still run; try again later") from None


def find_refusal(error: BaseException) -> ToolError | None:
    """Return the error if it is a ToolError, or the first of a group that holds nothing else."""
    if not isinstance(error, BaseExceptionGroup):
        return error if isinstance(error, ToolError) else None
    refusals, others = error.split(ToolError)
    return None if others is not None or refusals is None else find_refusal(refusals.exceptions[0])


class Relay(Protocol):
    """The way to a part of another server, which calls it `original`, and lists it as `wire`."""

    original: str

    @property
    def wire(self) -> Mapping[str, Any]: ...

    async def ask(self, params: Mapping[str, Any], context: Context) -> Mapping[str, Any]:
        """Return the other server's result for a call of the tool, or what the prompt's or resource's method takes.
        Raises ToolError, CannotAskError, and the server's own errors."""
        ...

    async def ask_about(self, method: str, params: Mapping[str, Any], context: Context) -> Mapping[str, Any]:
        """Return its result for another method that takes the URI of the resource."""
        ...

    async def complete(self, params: Mapping[str, Any], context: Context) -> Mapping[str, Any]:
        """Return its result for a completion of the prompt or the template."""
        ...

    def watch(self, uri: str, context: Context) -> AsyncIterator[object] | None:
        """Return what yields at each change of the resource `uri`, or None if its changes can't be known."""
        ...


class DeclaredPart(msgspec.Struct, eq=False, dict=True, weakref=True):
    """The fields of every part. `icons` and `meta` are sent unchanged to revisions that have them. `relay`: the part is
    another server's; what it says goes to the client unchanged."""

    kind: ClassVar[str]
    function: Function
    name: str
    title: str
    description: str
    scope: str = PLUGINS
    icons: Sequence[Mapping[str, Any]] | None = None
    meta: Mapping[str, Any] | None = None
    relay: Relay | None = None

    def __copy__(self) -> Self:
        other = msgspec.structs.replace(self)
        vars(other).update(vars(self))  # what is derived once, and completions
        return other

    def __repr__(self) -> str:
        return f"<{self.kind.removesuffix('s')} {self.key} from {self.source}>"

    @property
    def key(self) -> str:
        return self.name

    @property
    def source(self) -> str:
        return self.function.source

    @property
    def functions(self) -> Sequence[Function]:
        """All functions that a plugin wrote for this part."""
        return (self.function,)

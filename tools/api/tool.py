"""Make a typed function a tool, check a call's arguments, and convert the result to an Output."""

import inspect
import logging
import re
import types
import typing
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import cached_property
from typing import Any, Literal, overload

import msgspec

from toolgate.tools.api.arguments import ArgumentReader, ForeignArgument, get_at
from toolgate.tools.api.content import Content, Output, Text
from toolgate.tools.api.context.context import Context
from toolgate.tools.api.errors import CannotAskError, ToolError, drop_tracebacks
from toolgate.tools.api.function import DeclaredPart, Function, Parameters, Relay, find_refusal
from toolgate.tools.api.schema import schema
from toolgate.tools.api.schema.conversion import convert_value, to_integers
from toolgate.tools.api.scopes import PLUGINS

log = logging.getLogger("toolgate.plugins")

MAX_REFUSAL = 10_000  # characters of an error: it may name an argument, which the model reads a second time
GAP = " … "  # in the place of what is left out
MAX_ARGUMENT = 2**20  # characters of one text for a built-in tool: no model writes as much at once
TRUE = msgspec.Raw(b"true")
NAME = re.compile(r"[A-Za-z0-9_.-]{1,128}")  # server/tools, "Tool Names"


class ToolAnnotations(msgspec.Struct, frozen=True):
    """The four hints of ToolAnnotations, each always sent."""

    read_only: bool
    destructive: bool
    idempotent: bool
    open_world: bool


InPlan = bool | Literal["read-only"]
Follow = Callable[[str, Context], Awaitable[Output]]  # a continuation's state → how it ended
Stop = Callable[[str, Context], Awaitable[object]]


class Tool(DeclaredPart, kw_only=True, eq=False):
    """A named function that a client may call.

    `raw_input` is a JSON Schema that replaces the signature's and is sent unchanged. `output_type` is a JSON Schema or
    a type. `as_task`, `lean`, `in_plan`: see `tool`. `plugin` or `mount` names where the tool is from; without both it
    is built in. `foreign`: arguments of other programs' tools that models give to this one.
    `is_listed`: whether lists show it; it can be called all the same.
    """

    kind = "tools"
    annotations: ToolAnnotations
    raw_input: dict[str, Any] | None = None
    output_type: Any = None
    as_task: bool = False
    lean: bool = False
    in_plan: InPlan = False
    plugin: str | None = None
    mount: str | None = None
    follows: Follow | None = None
    stops: Stop | None = None
    foreign: Mapping[str, ForeignArgument] = {}
    is_listed: bool = True

    def following(self, call: Follow) -> Follow:
        """Decorate the function that waits for what a call left running (`Continuation`), and returns how it ended. It
        may run again after a restart, and is cancelled without harm."""
        self.follows = call
        return call

    def stopping(self, call: Stop) -> Stop:
        """Decorate the function that ends what a call left running."""
        self.stops = call
        return call

    @property
    def is_built_in(self) -> bool:
        return self.plugin is None and self.mount is None

    @cached_property
    def is_held_by_plan(self) -> bool:
        """Whether an active plan refuses the tool, or has it change nothing: it acts on the world, not only on the
        planner's notes."""
        return not self.annotations.read_only and self.in_plan is not True

    @cached_property
    def input(self) -> dict[str, Any]:
        if self.raw_input is not None:
            return self.raw_input
        return schema.input_schema(self.function.call, self.function.context)

    @cached_property
    def output(self) -> dict[str, Any] | None:
        if self.output_type is None or isinstance(self.output_type, dict):
            return self.output_type
        return schema.add_news(schema.of_type(self.output_type))

    @cached_property
    def allows_news(self) -> bool:
        """Whether structured content with notices in it (`schema.NEWS`) still fits the output schema."""
        return self.output is not None and schema.allows_news(self.output)

    @cached_property
    def mirrored_headers(self) -> dict[str, tuple[str, ...]]:
        """The parameters that clients mirror into headers: header name after `mcp-param-`, in lower case → path."""
        return schema.find_mirrored_headers(self.input)

    def find_mirrored(self, arguments: Any) -> dict[str, Any]:
        """Return the arguments that headers repeat, as the call reads them: header name → value, or None."""
        if not self.mirrored_headers:
            return {}
        given = self.read_arguments(arguments)[0] if isinstance(arguments, dict) else {}
        return {header: get_at(given, path) for header, path in self.mirrored_headers.items()}

    def with_description(self, description: str) -> "Tool":
        """Return the same tool with another description."""
        other = self.__copy__()
        other.description = description
        return other

    def verify(self) -> None:
        """Raise TypeError, UnicodeError or UnusableSchemaError for a tool that can't be listed or called."""
        told: list[object] = [self.name, self.title, self.description]  # a plugin may put any type there
        if not all(isinstance(word, str) for word in told):
            raise TypeError(f"name, title and description of {self.name!r} must be strings"[:200])
        if not NAME.fullmatch(self.name):
            raise TypeError(f"a tool's name is 1 to 128 of A-Z a-z 0-9 _ . -, not {self.name!r}"[:200])
        if self.input.get("type") != "object":
            raise schema.UnusableSchemaError(f'the input schema of {self.name} must have "type": "object"')
        # raises for values that JSON can't hold
        msgspec.json.encode([*told, self.input, self.output, self.icons, self.meta])
        schema.check_limits(self.input)
        schema.find_mirrored_headers(self.input)
        if self.raw_input is not None:
            _ = self._validator  # a raw schema may be anything; generated ones are correct
            self._compare_parameters()
        if self.output is not None:
            schema.check_limits(self.output)

    def _compare_parameters(self) -> None:
        """Log what a raw schema allows and the function can't be called with. Calls with it are refused."""
        accepted, properties = self.parameters, self.input.get("properties")
        if accepted is None or not isinstance(properties, dict):
            return
        for name in sorted(properties.keys() - accepted.names):
            log.warning("%s: its input schema has %r, which its function does not take", self.name, name)
        required = self.input.get("required")
        for name in sorted(accepted.required - set(required if isinstance(required, list) else ())):
            log.warning("%s: its function needs %r, which its input schema does not require", self.name, name)

    def read_arguments(self, arguments: dict[str, Any]) -> tuple[dict[str, Any], tuple[str, ...]]:
        """Return the arguments as the schema declares them, and the names of those left out that a client has added.
        Those that fit, and only they, are the object that was given. Another server reads its own."""
        if self.relay is not None:
            return arguments, ()
        parameters = self.parameters
        try:
            if self._validator.is_valid(arguments) and (parameters is None or parameters.names.issuperset(arguments)):
                return arguments, ()
        except (ValueError, RecursionError):  # nested too deeply; or an unusable schema, of a plugin elsewhere
            return {**arguments}, ()
        return self._reader.read(arguments)

    async def run(self, arguments: Mapping[str, Any], context: Context, *, is_valid: bool = False) -> Output:
        """Check the arguments, call the function, and return its result as an Output. A ToolError becomes an `is_error`
        Output. CannotAskError passes through: its meaning depends on the caller's revision. `is_valid`: the schema was
        checked already."""
        if self.relay is not None:
            return await self._ask_relay(self.relay, arguments, context)
        finding = self._too_long(arguments)
        if finding is None and not (is_valid and self.parameters is None):
            finding = self.check_arguments(arguments)
        if finding is not None:
            return Output([Text(f"{self.name}: {finding}")], is_error=True)
        try:
            if self._casts:
                given = {name: cast(arguments[name]) for name, cast in self._casts.items() if name in arguments}
                arguments = {**arguments, **given}
            value = await self.function.start(arguments, context)
        except CannotAskError:
            raise
        except ToolError as error:
            return create_refusal(error)
        except ExceptionGroup as group:
            refusal = find_refusal(group)
            try:
                if refusal is None:
                    raise
                if isinstance(refusal, CannotAskError):
                    raise refusal from None
                drop_tracebacks(group)
                return create_refusal(refusal)
            finally:
                del refusal  # its traceback holds this frame
        return self._to_output(value)

    async def _ask_relay(self, relay: Relay, arguments: Mapping[str, Any], context: Context) -> Output:
        try:
            result = await relay.ask(arguments, context)
        except CannotAskError:
            raise
        except ToolError as error:
            return create_refusal(error)
        return Output([], is_error=result.get("isError") in (True, TRUE), wire=result)

    def _too_long(self, arguments: Mapping[str, Any]) -> str | None:
        """Return the name of an argument that is too long, if any; plugins set their own limits."""
        if not self.is_built_in:
            return None
        for name, value in arguments.items():
            if isinstance(value, str) and len(value) > MAX_ARGUMENT:
                what = repr(name[: schema.MAX_SHOWN])
                return f"argument {what} has {len(value)} characters, at most {MAX_ARGUMENT} are allowed"
        return None

    @cached_property
    def check_arguments(self) -> schema.Check:
        """Return a check that returns a text about wrong arguments, or None if the schema and the function take
        them."""
        check = schema.compile_check(self.input, validator=self._validator)
        if self.parameters is None and not self.foreign:
            return check
        reader = self._reader

        def find_fault(arguments: Any) -> str | None:
            finding = check(arguments)
            if finding is None:
                return reader.find_unaccepted(arguments)
            return reader.find_advice(arguments) or finding

        return find_fault

    @cached_property
    def parameters(self) -> Parameters | None:
        """The function's parameters where the schema does not follow from them; None: it takes what the schema says."""
        return None if self.raw_input is None else self.function.parameters

    @cached_property
    def _validator(self) -> Any:
        return schema.compile_validator(self.input)

    @cached_property
    def _reader(self) -> ArgumentReader:
        return ArgumentReader(self.input, self._validator, self.foreign, self.parameters)

    @cached_property
    def _casts(self) -> dict[str, Callable[[Any], Any]]:
        """Return the conversions that JSON leaves open: 3.0 is an integer, and an object becomes a struct."""
        if self.raw_input is not None:
            return {}
        casts: dict[str, Callable[[Any], Any]] = {}
        for name, declared in self.input["properties"].items():
            kind = declared.get("type")
            if kind == "integer" or any(type(option) is int for option in declared.get("enum", ())):
                casts[name] = to_integers
            elif kind not in ("string", "boolean", "number") and "enum" not in declared:
                casts[name] = self._convert(name)
        return casts

    def _convert(self, name: str) -> Callable[[Any], Any]:
        hint = inspect.get_annotations(self.function.call, eval_str=True)[name]

        def convert(value: Any) -> Any:
            try:
                return convert_value(value, hint)
            except msgspec.ValidationError as error:
                raise ToolError(f"{self.name}: argument {name!r}: {error}") from None

        return convert

    def _to_output(self, value: Any) -> Output:
        if type(value) is str:  # as most tools return
            return Output([Text(value)])
        match value:
            case Output(content=[]) if value.structured is not None:
                return Output([Text(_to_json(value.structured))], value.structured, value.is_error)
            case Output():
                return value
            case str():
                return Output([Text(value)])
            case None:
                return Output([])
            case list() if value and all(isinstance(block, Content) for block in value):
                return Output(value)
            case _ if isinstance(value, Content):
                return Output([value])
            case _:
                return Output([Text(_to_json(value))], value if self.output is not None else None)


@overload
def tool(function: Callable[..., Any], /) -> Tool: ...


@overload
def tool(
    *,
    name: str | None = None,
    title: str | None = None,
    description: str | None = None,
    read_only: bool = False,
    destructive: bool | None = None,
    idempotent: bool | None = None,
    open_world: bool = True,
    input: dict[str, Any] | None = None,
    output: Any = None,
    icons: Sequence[Mapping[str, Any]] | None = None,
    meta: Mapping[str, Any] | None = None,
    scope: str = PLUGINS,
    as_task: bool = False,
    lean: bool = False,
    in_plan: InPlan = False,
) -> Callable[[Callable[..., Any]], Tool]: ...


def tool(
    function: Callable[..., Any] | None = None,
    /,
    *,
    name: str | None = None,
    title: str | None = None,
    description: str | None = None,
    read_only: bool = False,
    destructive: bool | None = None,
    idempotent: bool | None = None,
    open_world: bool = True,
    input: dict[str, Any] | None = None,
    output: Any = None,
    icons: Sequence[Mapping[str, Any]] | None = None,
    meta: Mapping[str, Any] | None = None,
    scope: str = PLUGINS,
    as_task: bool = False,
    lean: bool = False,
    in_plan: InPlan = False,
) -> Tool | Callable[[Callable[..., Any]], Tool]:
    """Make a typed function a tool. Its docstring is its description: it is written to the model.

    `read_only`, `destructive`, `idempotent`, `open_world`: the hints of ToolAnnotations; a tool that is not read-only
    counts as destructive unless it says otherwise. `input`: a raw JSON Schema in place of the signature's. `output`: a
    type or a JSON Schema that the structured content fits; by default the return type, when it is a struct, a
    dataclass, a TypedDict, a dict or a list of data. `as_task`: a call that takes longer than a few seconds becomes a
    task by itself if the client supports tasks (`Context.as_task`). `lean`: the text or picture is the whole answer, so
    structured content is sent with `--structured-output full` only. `scope`: the OAuth scope that a call needs (default
    `tools:plugins`). `in_plan`: an active plan does not refuse it; "read-only" if it then changes nothing
    (`Context.is_read_only`). A plain `def` runs in a thread.
    """

    def declare(call: Callable[..., Any]) -> Tool:
        function = Function(call)
        called = call.__name__ if name is None else name
        if not (text := description or function.description):
            raise TypeError(f"tool {called!r} has no docstring: its docstring is its description")
        hints = ToolAnnotations(
            read_only=read_only,
            destructive=not read_only if destructive is None else destructive,
            idempotent=read_only if idempotent is None else idempotent,
            open_world=open_world,
        )
        return Tool(
            function,
            called,
            title or called,
            text,
            annotations=hints,
            scope=scope,
            icons=icons,
            meta=meta,
            raw_input=input,
            output_type=output if output is not None else _structured_return_type(call),
            as_task=as_task,
            lean=lean,
            in_plan=in_plan,
        )

    return declare if function is None else declare(function)


def create_refusal(error: ToolError) -> Output:
    """Return the output for an error of a tool, whose frames are freed. The middle of a long text is left out."""
    drop_tracebacks(error)
    text, half = error.text, (MAX_REFUSAL - len(GAP)) // 2
    shown = text if len(text) <= MAX_REFUSAL else f"{text[:half]}{GAP}{text[-half:]}"
    return Output([Text(shown)], is_error=True, decision=error.decision)


def _to_json(value: Any) -> str:
    return msgspec.json.encode(value).decode()


def _structured_return_type(function: Callable[..., Any]) -> Any:
    """Return the return type if it is data with a schema of its own."""
    hint = inspect.get_annotations(function, eval_str=True).get("return")
    bare = typing.get_args(hint)[0] if typing.get_origin(hint) is typing.Annotated else hint
    kind = typing.get_origin(bare) or bare
    if not isinstance(kind, type) or issubclass(kind, (Output, Content)):
        return None
    is_typed_dict = issubclass(kind, dict) and hasattr(kind, "__required_keys__")
    if issubclass(kind, msgspec.Struct) or hasattr(kind, "__dataclass_fields__") or is_typed_dict:
        return hint
    if issubclass(kind, Mapping) or (issubclass(kind, (list, tuple)) and _are_data(typing.get_args(bare))):
        return hint if schema.has_schema(hint) else None
    return None


def _are_data(items: Sequence[Any]) -> bool:
    """Return whether no item of these types can be a content block: a list of blocks is content."""
    union = (typing.Union, types.UnionType)
    flat = [part for item in items for part in (typing.get_args(item) if typing.get_origin(item) in union else (item,))]
    kinds = [typing.get_origin(part) or part for part in flat]
    return bool(items) and not any(
        kind in (typing.Any, object) or (isinstance(kind, type) and issubclass(kind, Content)) for kind in kinds
    )

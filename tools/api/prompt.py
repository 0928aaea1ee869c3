"""Make a typed function a prompt: check arguments and convert its result. Source: MCP server/prompts."""

import inspect
import typing
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import cached_property
from typing import Annotated, Any, overload

import msgspec

from toolgate.tools.api.completion import Completions, F
from toolgate.tools.api.content import ROLES, Audio, EmbeddedResource, Image, Message, ResourceLink, Text
from toolgate.tools.api.context.context import Context
from toolgate.tools.api.errors import WrongArgumentsError
from toolgate.tools.api.function import DeclaredPart, Function
from toolgate.tools.api.schema.conversion import convert_value
from toolgate.tools.api.scopes import PLUGINS
from toolgate.tools.api.text.json_text import JsonError, decode_argument

MAX_NAME = 128  # characters, as of a tool's


class PromptArgument(msgspec.Struct, frozen=True, omit_defaults=True):
    """An argument as `prompts/list` shows it. Its value is always a string."""

    name: str
    description: str | None = None
    required: bool = False


class Prompt(DeclaredPart, kw_only=True, eq=False):
    """A named function that writes messages for a model. `role` is for a message returned as a plain string.
    `declared_arguments` replace those of the function's signature."""

    kind = "prompts"
    role: str = "user"
    declared_arguments: Sequence[PromptArgument] | None = None

    def __post_init__(self) -> None:
        self.completions = Completions(self.function.call, lambda: [argument.name for argument in self.arguments])

    @property
    def functions(self) -> Sequence[Function]:
        return (self.function, *self.completions.functions)

    @cached_property
    def arguments(self) -> Sequence[PromptArgument]:
        if self.declared_arguments is not None:
            return self.declared_arguments
        hints = typing.get_type_hints(self.function.call, include_extras=True)
        parameters = inspect.signature(self.function.call).parameters
        return [_to_argument(parameters[name], hints.get(name)) for name in parameters if name != self.function.context]

    def completion(self, argument: str) -> Callable[[F], F]:
        """Return a decorator for the function that suggests values for `argument`."""
        return self.completions.declare(argument)

    def verify(self) -> None:
        """Raise TypeError or UnicodeError for a prompt that can't be listed."""
        told: list[object] = [self.name, self.title, self.description]  # a plugin may put any type there
        if not all(isinstance(word, str) for word in told):
            raise TypeError(f"name, title and description of {self.name!r} must be strings"[:200])
        if not 0 < len(self.name) <= MAX_NAME or not self.name.isprintable():
            raise TypeError(f"a prompt's name is 1 to {MAX_NAME} printable characters, not {self.name!r}"[:200])
        if self.role not in ROLES:
            raise TypeError(f"the role of a prompt's message is 'user' or 'assistant', not {self.role!r}"[:200])
        msgspec.json.encode([*told, self.arguments, self.icons, self.meta])  # raises for values that JSON can't hold
        self.completions.verify()

    async def get(self, arguments: Mapping[str, Any], context: Context) -> list[Message]:
        """Return the prompt's messages. Raises WrongArgumentsError, and ToolError if the prompt refuses."""
        value = await self.function(self._convert_arguments(arguments), context)
        return [self._message(part) for part in (value if isinstance(value, (list, tuple)) else [value])]

    def _convert_arguments(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        known = {argument.name: argument for argument in self.arguments}
        for name, value in arguments.items():
            if name not in known:
                raise WrongArgumentsError(f"prompt {self.name!r} has no argument {name[:180]!r}"[:300])
            if not isinstance(value, str):
                raise WrongArgumentsError(f"argument {name[:180]!r} must be a string")
        missing = [name for name, argument in known.items() if argument.required and name not in arguments]
        if missing:
            raise WrongArgumentsError(f"missing argument {', '.join(map(repr, missing))}")
        if self.declared_arguments is not None:
            return dict(arguments)
        hints = typing.get_type_hints(self.function.call, include_extras=True)
        return {name: _convert_value(name, value, hints.get(name, str)) for name, value in arguments.items()}

    def _message(self, part: Any) -> Message:
        match part:
            case Message():
                content, role = part.content, part.role
            case str() | Text() | Image() | Audio() | EmbeddedResource() | ResourceLink():
                content, role = part, self.role
            case _:
                raise TypeError(f"prompt {self.name!r} returned a {type(part).__name__}, which is no message")
        return Message(role, Text(content) if isinstance(content, str) else content)


@overload
def prompt(function: Callable[..., Any], /) -> Prompt: ...


@overload
def prompt(
    *,
    name: str | None = None,
    title: str | None = None,
    description: str | None = None,
    role: str = "user",
    icons: Sequence[Mapping[str, Any]] | None = None,
    meta: Mapping[str, Any] | None = None,
    scope: str = PLUGINS,
) -> Callable[[Callable[..., Any]], Prompt]: ...


def prompt(
    function: Callable[..., Any] | None = None,
    /,
    *,
    name: str | None = None,
    title: str | None = None,
    description: str | None = None,
    role: str = "user",
    icons: Sequence[Mapping[str, Any]] | None = None,
    meta: Mapping[str, Any] | None = None,
    scope: str = PLUGINS,
) -> Prompt | Callable[[Callable[..., Any]], Prompt]:
    """Make a typed function a prompt. Its docstring is the description that a person reads when choosing.

    The parameters are the prompt's arguments, strings on the wire; those without a default are required. It returns a
    string, a content block, a Message, or a list of those. `role`: of a message that names none; "user" or "assistant",
    anything else is refused when the plugin is loaded.
    """

    def declare(call: Callable[..., Any]) -> Prompt:
        function = Function(call)
        called = call.__name__ if name is None else name
        text = description or function.description
        if not text:
            raise TypeError(f"prompt {called!r} has no docstring: its docstring is its description")
        return Prompt(function, called, title or called, text, scope=scope, icons=icons, meta=meta, role=role)

    return declare if function is None else declare(function)


def _to_argument(parameter: inspect.Parameter, hint: Any) -> PromptArgument:
    if parameter.kind not in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY):
        raise TypeError(f"argument {parameter.name!r} can't be given by name")
    words = [word for word in getattr(hint, "__metadata__", ()) if isinstance(word, str)]
    return PromptArgument(parameter.name, " ".join(words) or None, parameter.default is parameter.empty)


def _convert_value(name: str, value: str, hint: Any) -> Any:
    """Return the string converted to the parameter's type."""
    if typing.get_origin(hint) is Annotated:
        hint = typing.get_args(hint)[0]
    try:
        return msgspec.convert(value, hint, strict=False)
    except (msgspec.ValidationError, TypeError) as error:
        with suppress(JsonError, msgspec.ValidationError):  # a list or an object comes as JSON
            return convert_value(decode_argument(value), hint)
        raise WrongArgumentsError(f"argument {name!r}: {error}"[:300]) from None

"""Suggest values for arguments of prompts and variables of templates. Source: MCP server/utilities/completion."""

import inspect
import types
import typing
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Annotated, Any, TypeVar

import msgspec

from toolgate.tools.api.context.context import Context
from toolgate.tools.api.errors import WrongArgumentsError
from toolgate.tools.api.function import Function

MAX_VALUES = 100  # values in one answer, by the specification

F = TypeVar("F", bound=Callable[..., Any])


class Completion(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """The best suggestions, at most MAX_VALUES. `total` counts all suggestions, if that is known."""

    values: list[str]
    total: int | None = None
    has_more: bool | None = None


class Completions:
    """The completion functions of one part, and the choices of its Literal types.

    A function takes `value`, the text typed so far. It may also take `arguments`, the values already filled in, and a
    Context. It returns the suggestions, best first, or a Completion.
    """

    def __init__(self, part: Callable[..., Any], names: Callable[[], Iterable[str]]) -> None:
        self._part = part
        self._names = names
        self._functions: dict[str, Function] = {}

    @property
    def functions(self) -> Sequence[Function]:
        return tuple(self._functions.values())

    def declare(self, name: str) -> Callable[[F], F]:
        """Return a decorator for the function that completes the argument `name`."""

        def take(call: F) -> F:
            self._functions[name] = Function(call)
            return call

        return take

    def verify(self) -> None:
        """Raise TypeError for a completion of an unknown argument, or a function with the wrong parameters."""
        names = set(self._names())
        for name, function in self._functions.items():
            if name not in names:
                raise TypeError(f"there is no argument {name!r} to complete")
            taken = set(inspect.signature(function.call).parameters) - {function.context}
            if not taken <= {"value", "arguments"}:
                raise TypeError(f"the completion of {name!r} takes `value`, `arguments` and a Context, no other")

    async def complete(self, name: str, value: str, arguments: Mapping[str, str], context: Context) -> Completion:
        """Return the suggestions for `name`. Raises WrongArgumentsError if it is unknown, ToolError if refused."""
        if name not in self._names():
            raise WrongArgumentsError(f"there is no argument {name[:180]!r}")
        function = self._functions.get(name)
        if function is None:
            hint = typing.get_type_hints(self._part, include_extras=True).get(name)
            return to_completion(_matching_choices(map(str, _literals(hint)), value))
        keywords = {"value": value, "arguments": dict(arguments)}
        taken = inspect.signature(function.call).parameters
        answer = await function({key: keywords[key] for key in keywords if key in taken}, context)
        return to_completion(answer)


def _literals(hint: Any) -> Iterable[Any]:
    origin = typing.get_origin(hint)
    if origin is typing.Literal:
        return typing.get_args(hint)
    if origin is Annotated:
        return _literals(typing.get_args(hint)[0])
    if origin in (typing.Union, types.UnionType):
        return [choice for part in typing.get_args(hint) for choice in _literals(part)]
    return ()


def _matching_choices(choices: Iterable[str], value: str) -> list[str]:
    """Return the choices that begin with the typed text, then those that contain it."""
    typed = value.casefold()
    fit = [choice for choice in choices if typed in choice.casefold()]
    return sorted(fit, key=lambda choice: not choice.casefold().startswith(typed))


def to_completion(answer: Any) -> Completion:
    """Return the function's answer as a Completion, cut to MAX_VALUES."""
    if isinstance(answer, Completion):
        values, total, more = answer.values, answer.total, answer.has_more
    else:
        values = [str(value) for value in answer]
        total, more = len(values), None
    return Completion(values[:MAX_VALUES], total, bool(more) or len(values) > MAX_VALUES)

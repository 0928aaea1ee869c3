"""Suggest values for an argument of a prompt, or for a variable of a resource template, while a person types.

Source: MCP server/utilities/completion.
"""

import inspect
import types
import typing
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Annotated, Any, TypeVar

import msgspec

from toolgate.tools.api.context import Context
from toolgate.tools.api.errors import WrongArgumentsError
from toolgate.tools.api.function import Function

MAX_VALUES = 100  # of one answer, by the specification

F = TypeVar("F", bound=Callable[..., Any])


class Completion(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """The best suggestions, at most MAX_VALUES; `total` counts all there are, where that is known."""

    values: list[str]
    total: int | None = None
    has_more: bool | None = None


class Completions:
    """What is known of the arguments of one part: functions that were declared, and the choices of Literal types.

    A function takes `value`, what was typed so far, and if it wants `arguments`, those already filled in, and a
    Context. It gives the suggestions, best first, or a Completion.
    """

    def __init__(self, part: Callable[..., Any], names: Callable[[], Iterable[str]]) -> None:
        self._part = part
        self._names = names
        self._functions: dict[str, Function] = {}

    @property
    def functions(self) -> Sequence[Function]:
        return tuple(self._functions.values())

    def declare(self, name: str) -> Callable[[F], F]:
        """A decorator for the function that completes the argument `name`."""

        def take(call: F) -> F:
            self._functions[name] = Function(call)
            return call

        return take

    def verify(self) -> None:
        """Raise TypeError for a completion of an argument that is none, or a function that can't be called as one."""
        names = set(self._names())
        for name, function in self._functions.items():
            if name not in names:
                raise TypeError(f"there is no argument {name!r} to complete")
            taken = set(inspect.signature(function.call).parameters) - {function.context}
            if not taken <= {"value", "arguments"}:
                raise TypeError(f"the completion of {name!r} takes `value`, `arguments` and a Context, no other")

    async def complete(self, name: str, value: str, arguments: Mapping[str, str], context: Context) -> Completion:
        """Raises WrongArgumentsError for an argument that is none, ToolError for what the function says no to."""
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
    """Those that begin with what was typed, then those that have it inside."""
    typed = value.casefold()
    fit = [choice for choice in choices if typed in choice.casefold()]
    return sorted(fit, key=lambda choice: not choice.casefold().startswith(typed))


def to_completion(answer: Any) -> Completion:
    """What a function gave, cut to what one answer may hold."""
    if isinstance(answer, Completion):
        values, total, more = answer.values, answer.total, answer.has_more
    else:
        values = [str(value) for value in answer]
        total, more = len(values), None
    return Completion(values[:MAX_VALUES], total, bool(more) or len(values) > MAX_VALUES)

"""Declare which methods of objects another process may request, with the types of their arguments and results.

Both ends read the same table. The types come from the signatures of the methods.
"""

import inspect
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, get_type_hints

import msgspec

from toolgate.server.base.rpc import frames


class ApiMethod(NamedTuple):
    """A method and the decoders of its arguments and result. `signature` is without self, `positional` are the
    parameters that need no name. `returns_data`: as many bytes as the caller wants."""

    signature: inspect.Signature
    positional: tuple[str, ...]
    required: frozenset[str]
    arguments: "msgspec.json.Decoder[Any]"
    result: "msgspec.json.Decoder[Any]"
    returns_data: bool

    def decode_arguments(self, data: msgspec.Raw, max_data: int) -> dict[str, Any]:
        """Return the arguments of a request by name, `limit` from 0 to `max_data`. Raises msgspec.MsgspecError."""
        arguments = self.arguments.decode(data)
        if self.returns_data:
            arguments.limit = max(0, min(arguments.limit, max_data))
        return {field: getattr(arguments, field) for field in arguments.__struct_fields__}

    def bind(self, words: tuple[Any, ...], keywords: Mapping[str, Any]) -> dict[str, Any]:
        """Return the arguments of a call by name. Raises TypeError."""
        given: dict[str, Any] = dict(zip(self.positional, words, strict=False))
        given.update(keywords)
        names = self.signature.parameters.keys()
        if len(given) == len(words) + len(keywords) and self.required <= given.keys() <= names:
            return given
        return dict(self.signature.bind(*words, **keywords).arguments)  # raises the TypeError


class MethodTable:
    """The methods that may be requested: `objects` has the names of objects, their types, and the names of methods."""

    def __init__(self, objects: Mapping[str, tuple[type, tuple[str, ...]]]) -> None:
        self.objects = objects
        self._methods: dict[str, ApiMethod] = {}

    def find(self, name: str) -> ApiMethod | None:
        """Return the method called `object.method`, or None if it is not in the table."""
        if name not in self._methods:
            owner, _, attribute = name.partition(".")
            kind, names = self.objects.get(owner, (object, ()))
            if attribute not in names:
                return None
            self._methods[name] = _read_signature(name, getattr(kind, attribute))
        return self._methods[name]

    def returns_data(self, name: str) -> bool:
        """Return whether the answer to a request may hold as many bytes as the caller asks for."""
        method = self.find(name)
        return method is not None and method.returns_data


def _read_signature(name: str, function: Callable[..., Any]) -> ApiMethod:
    hints = get_type_hints(function)
    parameters = list(inspect.signature(function).parameters.values())[1:]
    fields: list[Any] = []
    for parameter in parameters:
        has_default = parameter.default is not parameter.empty
        spelled = (parameter.name, hints[parameter.name])
        fields.append((*spelled, parameter.default) if has_default else spelled)
    arguments = msgspec.defstruct(name.replace(".", "_"), fields, kw_only=True, forbid_unknown_fields=True)
    return ApiMethod(
        inspect.Signature(parameters),
        tuple(each.name for each in parameters if each.kind is not each.KEYWORD_ONLY),
        frozenset(each.name for each in parameters if each.default is each.empty),
        frames.create_decoder(arguments),
        frames.create_decoder(hints["return"]),
        returns_data=any(each.name == "limit" for each in parameters),
    )

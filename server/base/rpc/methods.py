"""Declare which methods of objects another process may request, with the types of their arguments and results.

Both ends read the same table. The types come from the signatures of the methods, mostly those of Protocols.
"""

import functools
import inspect
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any, NamedTuple, TypeVar, get_type_hints

import msgspec

from toolgate.server.base.rpc import frames

T = TypeVar("T")
Methods = Mapping[str, Callable[..., Any]]  # by name


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
    """The methods that may be requested, by the names of their `objects`."""

    def __init__(self, objects: Mapping[str, Methods]) -> None:
        self.objects = objects
        self._methods: dict[str, ApiMethod] = {}

    def find(self, name: str) -> ApiMethod | None:
        """Return the method called `object.method`, or None if it is not in the table.

        Raises TypeError for a method with a type that no message can hold.
        """
        if name not in self._methods:
            owner, _, attribute = name.partition(".")
            function = self.objects.get(owner, {}).get(attribute)
            if function is None:
                return None
            self._methods[name] = _read_signature(name, function)
        return self._methods[name]

    def returns_data(self, name: str) -> bool:
        """Return whether the answer to a request may hold as many bytes as the caller asks for."""
        method = self.find(name)
        return method is not None and method.returns_data


def list_methods(kind: type, *, but: Collection[str] = ()) -> Methods:
    """Return the public coroutine functions of a class, `but` those."""
    functions = inspect.getmembers(kind, inspect.iscoroutinefunction)
    return {name: function for name, function in functions if not name.startswith("_") and name not in but}


def pick_methods(kind: type, *names: str) -> Methods:
    """Return these methods of a class."""
    return {name: getattr(kind, name) for name in names}


def add_requests(table: MethodTable) -> Callable[[type[T]], type[T]]:
    """Decorate a class whose bases are Protocols. A method of the table that the class does not define requests it, by
    `self._call(name, ...)`.

    Raises TypeError if a Protocol has a member that is neither in the table nor defined by the class. Type checkers see
    only the Protocols, and take the class for abstract. It has a class method `create`, where they allow `cls(...)`.
    """

    def decorate(kind: type[T]) -> type[T]:
        declared = {name for base in kind.__mro__[1:] for name in vars(base) if not name.startswith("_")}
        for owner, methods in table.objects.items():
            for name in (declared & methods.keys()) - vars(kind).keys():
                setattr(kind, name, _create_request(f"{owner}.{name}", methods[name]))
        missing = sorted(declared - vars(kind).keys())
        if missing:
            raise TypeError(f"{kind.__name__} must define what can't be requested: {', '.join(missing)}")
        return kind

    return decorate


def _create_request(full_name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    async def request(self: Any, *words: Any, **keywords: Any) -> Any:
        return await self._call(full_name, *words, **keywords)

    return request


def _read_signature(name: str, function: Callable[..., Any]) -> ApiMethod:
    hints = get_type_hints(function)
    parameters = list(inspect.signature(function).parameters.values())[1:]
    fields: list[Any] = []
    for parameter in parameters:
        has_default = parameter.default is not parameter.empty
        spelled = (parameter.name, hints[parameter.name])
        fields.append((*spelled, parameter.default) if has_default else spelled)
    arguments = msgspec.defstruct(name.replace(".", "_"), fields, kw_only=True, forbid_unknown_fields=True)
    for kind in (arguments, hints["return"]):
        msgspec.json.schema(kind, schema_hook=functools.partial(_check_type, name))
    return ApiMethod(
        inspect.Signature(parameters),
        tuple(each.name for each in parameters if each.kind is not each.KEYWORD_ONLY),
        frozenset(each.name for each in parameters if each.default is each.empty),
        frames.create_decoder(arguments),
        frames.create_decoder(hints["return"]),
        returns_data=any(each.name == "limit" for each in parameters),
    )


def _check_type(name: str, kind: type) -> dict[str, Any]:
    """Return the JSON schema of a type that msgspec does not know. Raises TypeError if frames don't know it either."""
    if kind is not Path:
        raise TypeError(f"{name}: no message can hold {kind.__qualname__}")
    return {"type": "string"}

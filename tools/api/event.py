"""Declare types of events: what can happen, what is told of it, and the arguments that filter.

Source: SEP-3415, "Events" (extension io.modelcontextprotocol/events).
"""

import re
from collections.abc import Callable, Mapping
from functools import cached_property
from typing import Any

import msgspec

from toolgate.tools.api.arguments import ArgumentReader
from toolgate.tools.api.function import DeclaredPart, Function
from toolgate.tools.api.schema import schema
from toolgate.tools.api.scopes import PLUGINS

NAME = re.compile(r"[A-Za-z0-9_./-]{1,128}")


class EventType(DeclaredPart, kw_only=True, eq=False):
    """A type of event. Its function is never called: the parameters are the arguments that filter.

    `payload_type` is a type or a JSON Schema, always an object. An argument that a subscriber gives must equal the
    payload's member of the same name. `tool` names the tool that the events tell about: where that
    is not served, they are not offered.
    """

    kind = "events"
    payload_type: Any
    tool: str | None = None
    plugin: str | None = None
    sink: Callable[[str, Any, str | None], None] | None = None  # of the server that serves it

    def emit(self, principal: str, payload: Any, key: str | None = None) -> None:
        """Tell those who wait for it that this has happened to `principal` (`Context.principal`), and nobody else.

        It may be called from anywhere, also from a thread. With a `key`, a repeated call is the same event; without one
        each call is another. Before the server serves the type, nobody waits for it. Raises ValueError for a payload
        that does not fit its type.
        """
        if self.sink is not None:
            self.sink(principal, payload, key)

    @cached_property
    def input(self) -> dict[str, Any]:
        return schema.input_schema(self.function.call, None)

    @cached_property
    def payload(self) -> dict[str, Any]:
        return self.payload_type if isinstance(self.payload_type, dict) else schema.of_type(self.payload_type)

    def read_arguments(self, arguments: dict[str, Any]) -> dict[str, Any]:
        """Return the arguments as the schema declares them, without those that a client has added."""
        return self._reader.read(arguments)[0]

    @cached_property
    def check_arguments(self) -> schema.Check:
        """Return a check that returns a text about wrong arguments, or None if the schema accepts them."""
        return schema.compile_check(self.input, validator=self._validator)

    @cached_property
    def _validator(self) -> Any:
        return schema.compile_validator(self.input)

    @cached_property
    def _reader(self) -> ArgumentReader:
        return ArgumentReader(self.input, self._validator, {}, None)

    @cached_property
    def check_payload(self) -> schema.Check:
        """Return a check of an event's payload, likewise."""
        return schema.compile_check(self.payload)

    def verify(self) -> None:
        """Raise TypeError, UnicodeError or UnusableSchemaError for a type that can't be listed."""
        told: list[object] = [self.name, self.title, self.description]  # a plugin may put any type there
        if not all(isinstance(word, str) for word in told):
            raise TypeError(f"name, title and description of {self.name!r} must be strings"[:200])
        if not NAME.fullmatch(self.name):
            raise TypeError(f"an event's name is 1 to 128 of A-Z a-z 0-9 _ . / -, not {self.name!r}"[:200])
        if self.payload.get("type") != "object":
            raise TypeError(f"the payload of {self.name} must be an object: a struct, a dataclass or a TypedDict")
        unknown = self.input["properties"].keys() - self.payload.get("properties", {}).keys()
        if unknown:
            raise TypeError(f"argument {min(unknown)!r} of {self.name} is no member of its payload")
        msgspec.json.encode([*told, self.input, self.payload, self.meta])  # raises for values that JSON can't hold
        for part in (self.input, self.payload):
            schema.check_limits(part)
        _ = self.check_arguments, self.check_payload


def find_break(before: EventType, after: EventType) -> str | None:
    """Return what a subscriber to `before` could not read in `after`: "inputSchema", "payloadSchema" or None."""
    if not _extends(before.input, after.input) or _required_names(after.input) - _required_names(before.input):
        return "inputSchema"
    if not _extends(before.payload, after.payload) or _required_names(before.payload) - _required_names(after.payload):
        return "payloadSchema"
    return None


def _extends(before: Mapping[str, Any], after: Mapping[str, Any]) -> bool:
    """Return whether each property is still there and the same."""
    old, new = before.get("properties", {}), after.get("properties", {})
    return before.get("$defs") == after.get("$defs") and all(new.get(name) == part for name, part in old.items())


def _required_names(part: Mapping[str, Any]) -> set[str]:
    return set(part.get("required", ()))


def matches(arguments: Mapping[str, Any], payload: Mapping[str, Any]) -> bool:
    """Return whether an event with this payload is for a subscriber with these arguments."""
    return all(name in payload and payload[name] == value for name, value in arguments.items())


def event(
    *,
    payload: Any,
    name: str | None = None,
    title: str | None = None,
    description: str | None = None,
    meta: Mapping[str, Any] | None = None,
    scope: str = PLUGINS,
    tool: str | None = None,
) -> Callable[[Callable[..., Any]], EventType]:
    """Make a function's signature a type of event. Its docstring is the description: it is written to the model.

    `payload`: the type of what is told, a struct for example. Each parameter is an argument that a subscriber may give;
    it gets the events whose payload has an equal member of that name. The function's body is never run: `emit` says
    that it has happened. `scope`: the OAuth scope that a subscriber needs (default `tools:plugins`).
    """

    def declare(call: Callable[..., Any]) -> EventType:
        function = Function(call)
        called = name or call.__name__
        text = description or function.description
        if not text:
            raise TypeError(f"event {called!r} has no docstring: its docstring is its description")
        return EventType(
            function, called, title or called, text, payload_type=payload, scope=scope, meta=meta, tool=tool
        )

    return declare

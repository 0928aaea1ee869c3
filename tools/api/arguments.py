"""Prepare the arguments of a call: read texts as the schema declares them, and leave out what clients add on their own.

A valid call is not changed. An unknown argument is left out only if its name is listed here, or with the tool, as one
that clients add and that changes nothing. Others are refused.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping
from functools import cached_property
from typing import TYPE_CHECKING, Any

import msgspec

from toolgate.tools.api.function import Parameters
from toolgate.tools.api.schema import schema

if TYPE_CHECKING:
    from toolgate.tools.api.schema.reader import SchemaReader

N8N = ("toolCallId", "sessionId", "chatInput")
BESIDE_N8N = frozenset(("action", "tool", "success"))  # words that tools use, too: added only beside one of N8N
CHAT_ACTION = "sendMessage"  # of n8n's chat: as `action` it comes alone as well
ADDED = frozenset(  # arguments that clients add to the calls of any tool
    (
        *N8N,
        "requestId",
        "task_progress",  # Cline
        "security_context",  # CrewAI
        "wait_for_previous",  # Gemini CLI
        "waitForPreviousTools",  # Antigravity
    )
)
LITERALS: Mapping[str, Any] = {"true": True, "false": False, "null": None}
PRIVATE = "_"  # begins the names of a client's own notes: `_meta` of LangChain, `_sessionID` of SiYuan


class ForeignArgument(msgspec.Struct, frozen=True):
    """An argument of other programs' tools that models give to one of ours. It is left out if its value is among
    `harmless`, or that is None. Any other value is refused with `advice`."""

    harmless: tuple[Any, ...] | None = None
    advice: str = ""

    def is_harmless(self, value: Any) -> bool:
        if self.harmless is None:
            return True
        read = LITERALS.get(value, value) if isinstance(value, str) else value
        return any(read is each for each in self.harmless)


class ArgumentReader:
    """Prepare arguments by the schema of one tool. `foreign` are its foreign arguments; `accepted` the parameters of
    its function, or None if the schema says it all."""

    def __init__(
        self,
        schema: dict[str, Any],
        validator: Any,
        foreign: Mapping[str, ForeignArgument],
        accepted: Parameters | None,
    ) -> None:
        self._schema = schema
        self._validator = validator
        self._foreign = foreign
        self._accepted = accepted

    def read(self, arguments: dict[str, Any]) -> tuple[dict[str, Any], tuple[str, ...]]:
        """Return the arguments, and the names of those left out because a client adds them."""
        added = tuple(self._find_added(arguments))
        given = {
            name: value for name, value in arguments.items() if name not in added and not self._is_unset(name, value)
        }
        if self._is_valid(given):
            return given, added
        for deep in (False, True):
            given = self._reader.read(given, deep=deep)
            if self._is_valid(given):
                break
        return given, added

    def find_advice(self, arguments: Mapping[str, Any]) -> str | None:
        """Return what to do in place of a foreign argument, or None."""
        for name, foreign in self._foreign.items():
            if name in arguments and not foreign.is_harmless(arguments[name]):
                return f'no argument "{name}": {foreign.advice}'
        return None

    def find_unaccepted(self, arguments: Mapping[str, Any]) -> str | None:
        """Return what the tool's function can't be called with though the schema allows it, or None."""
        if self._accepted is None:
            return None
        unknown = arguments.keys() - self._accepted.names
        if unknown:
            return schema.format_unknown(min(unknown), sorted(self._accepted.names))
        missing = self._accepted.required - arguments.keys()
        return f'argument "{min(missing)}" is missing' if missing else None

    def _is_valid(self, arguments: Any) -> bool:
        try:
            return bool(self._validator.is_valid(arguments))
        except (ValueError, RecursionError):  # the validator's own limit
            return False

    def _is_unset(self, name: str, value: Any) -> bool:
        """Return whether an optional argument is null, or the text "null", where neither is a value of it."""
        if value is None:
            return name in self._never_null
        return value == "null" and name in self._never_null and not self._reader.fits_property(value, name)

    def _find_added(self, arguments: Mapping[str, Any]) -> Iterator[str]:
        for name, value in arguments.items():
            if self._is_undeclared(name) and self._is_added(name, value, arguments):
                yield name

    def _is_added(self, name: str, value: Any, arguments: Mapping[str, Any]) -> bool:
        if name in self._foreign:
            return self._foreign[name].is_harmless(value)
        if name in ADDED:
            return True
        if name.startswith(PRIVATE):
            return name.strip(PRIVATE) not in self._property_names
        if name == "action" and value == CHAT_ACTION:
            return True
        return name in BESIDE_N8N and not arguments.keys().isdisjoint(N8N)

    def _is_undeclared(self, name: str) -> bool:
        """Return whether the tool has no place for an argument of this name."""
        if name in self._property_names or "patternProperties" in self._schema:
            return False
        if self._accepted is not None:
            return name not in self._accepted.names
        return False in (self._schema.get("additionalProperties"), self._schema.get("unevaluatedProperties"))

    @cached_property
    def _property_names(self) -> Collection[str]:
        """The names of all properties anywhere in the schema."""
        return frozenset(_find_properties(self._schema))

    @cached_property
    def _never_null(self) -> frozenset[str]:
        return schema.never_null(self._schema)

    @cached_property
    def _reader(self) -> "SchemaReader":
        from toolgate.tools.api.schema.reader import SchemaReader  # start-up: most clients send right values

        return SchemaReader(self._schema)


def _find_properties(root: Any) -> Iterator[str]:
    waiting = [root]
    while waiting:
        node = waiting.pop()
        if isinstance(node, dict):
            properties = node.get("properties")
            if isinstance(properties, dict):
                yield from properties
            waiting.extend(node.values())
        elif isinstance(node, list):
            waiting.extend(node)


def get_at(arguments: Any, path: Iterable[str]) -> Any:
    """Return the value at a path of member names, or None."""
    for step in path:
        if not isinstance(arguments, dict):
            return None
        arguments = arguments.get(step)
    return arguments

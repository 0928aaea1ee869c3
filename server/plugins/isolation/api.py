"""What a plugin in a process of its own may ask for: the shapes of it, and a table of methods, read by both ends.

The types of a method's arguments and of what it gives come from its signature. What is not in the table can't be
asked for. Knows nothing of frames or processes.
"""

import functools
import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple, get_type_hints

import msgspec

from toolgate.server.plugins.isolation import messages
from toolgate.tools.api.context import Callbacks, Plan, Tasks
from toolgate.tools.web.fetch import Web
from toolgate.tools.workspace.workspace import Workspace

# The attribute of a Context, its type, and the methods. Everything else would need an object that can't travel.
COMMANDS = (
    "start",
    "run",
    "list",
    "read",
    "size",
    "take",
    "taken",
    "grown",
    "wait_shell",
    "wait",
    "kill",
    "keep",
    "forget",
)
FILES = ("landed", "read_file", "write_file", "look", "entries", "resolve")
LENT: tuple[tuple[str, type, tuple[str, ...]], ...] = (
    ("tasks", Tasks, ("create", "add", "complete", "switch", "all", "current")),
    ("plan", Plan, ("active", "state", "enter", "exit", "reset")),
    ("callbacks", Callbacks, ("set", "list", "cancel", "fired")),
    ("workspace", Workspace, (*COMMANDS, *FILES)),
    ("web", Web, ("fetch",)),
)


class Method(NamedTuple):
    """`given` reads the arguments, `gives` the result; `brings`: it brings data, as much as it is asked for."""

    signature: inspect.Signature
    given: "msgspec.json.Decoder[Any]"
    gives: "msgspec.json.Decoder[Any]"
    brings: bool


# -- what is asked for of the call itself: notes


class Progress(msgspec.Struct):
    progress: int | float
    total: int | float | None
    message: str | None


class Line(msgspec.Struct):
    level: str
    data: Any
    logger: str | None


class Nothing(msgspec.Struct):
    pass


class Uri(msgspec.Struct):
    uri: str


class Told(msgspec.Struct):
    run: int


# -- and requests


class Questions(msgspec.Struct):
    requests: dict[str, dict[str, Any]]
    timeout: float | None


class Key(msgspec.Struct):
    key: str


class Kept(msgspec.Struct):
    key: str
    value: Any


class Task(msgspec.Struct):
    required: bool


class Watch(msgspec.Struct):
    number: int
    path: Path


# -- and of what the caller owns


@functools.cache
def method(name: str) -> Method | None:
    """The method called `owner.name`, or None for what is not lent."""
    owner, _, attribute = name.partition(".")
    kind = next((kind for held, kind, names in LENT if held == owner and attribute in names), None)
    if kind is None:
        return None
    function: Callable[..., Any] = getattr(kind, attribute)
    hints = get_type_hints(function)
    signature = inspect.signature(function)
    fields: list[Any] = []
    for parameter in list(signature.parameters.values())[1:]:
        has_default = parameter.default is not parameter.empty
        spelled = (parameter.name, hints[parameter.name])
        fields.append((*spelled, parameter.default) if has_default else spelled)
    given = msgspec.defstruct(name.replace(".", "_"), fields, kw_only=True, forbid_unknown_fields=True)
    brings = "limit" in signature.parameters
    return Method(signature, messages.decoder(given), messages.decoder(hints["return"]), brings)

"""Declare what a plugin in its own process may request from the server: the methods, and the types of their arguments.

Both ends read the table. The types of a method's arguments and of its result come from its signature.
"""

import functools
import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple, get_type_hints

import msgspec

from toolgate.server.plugins.isolation import messages
from toolgate.tools.api.services import Callbacks, Plan, Todos
from toolgate.tools.web.fetch import Web
from toolgate.tools.workspace.workspace import Workspace

# The attribute of a Context, its type, and the methods. Everything else would need an object that can't travel.
COMMANDS = (
    *("start", "execute", "conclude", "run", "list", "wait", "wait_shell"),
    *("kill", "keep", "forget", "discard"),
)
OUTPUT = ("read", "size", "take", "mark_read", "wait_output")
FILES = ("read_cwd", "read_file", "write_file", "stat_path", "entries", "resolve", "run_program")
CONTEXT_METHODS: tuple[tuple[str, type, tuple[str, ...]], ...] = (
    ("todos", Todos, ("create", "add", "complete", "switch", "all", "current")),
    ("plan", Plan, ("active", "state", "enter", "exit", "reset")),
    ("callbacks", Callbacks, ("set", "list", "cancel", "list_fired")),
    ("workspace", Workspace, (*COMMANDS, *OUTPUT, *FILES)),
    ("web", Web, ("fetch",)),
)


class ApiMethod(NamedTuple):
    """A method and the decoders of its arguments and result. `returns_data`: as many bytes as the caller wants."""

    signature: inspect.Signature
    arguments: "msgspec.json.Decoder[Any]"
    result: "msgspec.json.Decoder[Any]"
    returns_data: bool


# -- notes about the call itself


class ProgressNote(msgspec.Struct):
    progress: int | float
    total: int | float | None
    message: str | None


class LogNote(msgspec.Struct):
    level: str
    data: Any
    logger: str | None


class EmptyNote(msgspec.Struct):
    pass


class UriNote(msgspec.Struct):
    uri: str


# -- requests


class AskArguments(msgspec.Struct):
    requests: dict[str, dict[str, Any]]
    timeout: float | None


class RecallArguments(msgspec.Struct):
    key: str


class KeepArguments(msgspec.Struct):
    key: str
    value: Any


class AsTaskArguments(msgspec.Struct):
    required: bool


class WatchArguments(msgspec.Struct):
    number: int
    path: Path


# -- requests about what the caller owns


@functools.cache
def find_method(name: str) -> ApiMethod | None:
    """Return the method called `owner.name`, or None if it is not in the table."""
    owner, _, attribute = name.partition(".")
    kind = next((kind for held, kind, names in CONTEXT_METHODS if held == owner and attribute in names), None)
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
    return ApiMethod(signature, messages.create_decoder(given), messages.create_decoder(hints["return"]), brings)

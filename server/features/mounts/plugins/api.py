"""Declare what a plugin in its own process may request of the server, and what it tells of a call."""

from pathlib import Path
from typing import Any

import msgspec

from toolgate.server.base.rpc.methods import MethodTable, pick_methods
from toolgate.tools.api.context.services import Callbacks, Plan, Todos
from toolgate.tools.api.outbound.fetch import Web
from toolgate.tools.workspace.workspace import Workspace

# The attribute of a Context, and the methods of its type. Everything else would need an object that can't travel.
COMMANDS = (
    *("start", "execute", "conclude", "run", "list", "wait", "wait_shell"),
    *("kill", "keep", "forget", "discard"),
)
OUTPUT = ("read", "size", "take", "mark_read", "wait_output")
FILES = ("read_cwd", "read_file", "write_file", "stat_path", "entries", "resolve", "run_program")
CONTEXT_METHODS = MethodTable(
    {
        "todos": pick_methods(Todos, "create", "add", "complete", "switch", "all", "current"),
        "plan": pick_methods(Plan, "active", "state", "enter", "exit", "reset"),
        "callbacks": pick_methods(Callbacks, "set", "list", "cancel", "list_fired"),
        "workspace": pick_methods(Workspace, *COMMANDS, *OUTPUT, *FILES),
        "web": pick_methods(Web, "fetch"),
    }
)


# -- notices about the call itself


class ProgressNotice(msgspec.Struct):
    progress: int | float
    total: int | float | None
    message: str | None


class LogNotice(msgspec.Struct):
    level: str
    data: Any
    logger: str | None


class EmptyNotice(msgspec.Struct):
    pass


class UriNotice(msgspec.Struct):
    uri: str


class CancelNotice(msgspec.Struct, rename="camel"):
    """A request is withdrawn."""

    request_id: int


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

"""Define what the server and a plugin's process send each other beside MCP: names of methods, and the data of parts and
calls."""

from collections.abc import Mapping
from typing import Any

import msgspec

from toolgate.server.base.rpc.errors import ErrorData, ErrorTable
from toolgate.server.base.rpc.frames import NOTHING
from toolgate.tools.api.context.services import Settings
from toolgate.tools.api.function import Parameters
from toolgate.tools.api.prompt import PromptArgument
from toolgate.tools.api.tool import InPlan
from toolgate.tools.workspace.workspace import WORKSPACE_ERRORS

ERRORS = ErrorTable(*WORKSPACE_ERRORS)  # a plugin meets them in `ctx.workspace`
MAX_MESSAGE = 31 * 2**20  # bytes of what one message carries: both ends take 32 MiB with what is around it

# -- methods of the process

LOAD = "toolgate/load"  # import the plugin, before its lists are asked for
LINKS = "toolgate/links"  # what one template lists
WATCH = "toolgate/watch"  # runs as long as a resource is followed
CANCEL = "toolgate/cancel"  # end a call; unlike notifications/cancelled it is answered, by a process that lives
STATE = "notifications/toolgate/state"  # a call has become a task, or can't

# -- methods of the server

CONTEXT = "toolgate/context"  # what a Context has at the server; also the capability of a client that answers it
UPDATED = "notifications/resources/updated"
LIST_CHANGED = "notifications/resources/list_changed"
CANCELLED = "notifications/cancelled"
CLOSE_STREAM = "notifications/toolgate/close_stream"
CHANGED = "notifications/toolgate/changed"  # what WATCH follows
EVENT = "notifications/toolgate/event"

# -- members of `_meta`

PART = "toolgate/part"  # of a listed item: what MCP's lists do not say
CALLER = "toolgate/caller"  # of a request: its `ContextData`
CWD = "toolgate/cwd"  # of a result: the caller's new folder, if it moved

CLIENT: Mapping[str, Any] = {"experimental": {CONTEXT: {}}}  # the capabilities that the process is told


# -- parts


class ListedPart(msgspec.Struct, frozen=True, rename="camel"):
    """An item of a list, with those members of all kinds that the server reads."""

    name: str
    description: str
    meta: dict[str, Any] = msgspec.field(name="_meta")
    title: str = ""  # types of events have none
    icons: list[dict[str, Any]] | None = None
    annotations: dict[str, Any] | None = None
    input_schema: dict[str, Any] = {}
    output_schema: dict[str, Any] | None = None
    arguments: list[PromptArgument] = []
    uri: str = ""
    uri_template: str = ""
    mime_type: str | None = None
    payload_schema: dict[str, Any] = {}


class ToolHints(msgspec.Struct, frozen=True, rename="camel"):
    """The annotations of a tool."""

    read_only_hint: bool
    destructive_hint: bool
    idempotent_hint: bool
    open_world_hint: bool


class ToolData(msgspec.Struct, frozen=True, tag="tool"):
    scope: str
    source: str
    as_task: bool = False
    lean: bool = False
    in_plan: InPlan = False
    has_context: bool = False
    parameters: Parameters | None = None


class PromptData(msgspec.Struct, frozen=True, tag="prompt"):
    scope: str
    source: str
    role: str


class ResourceData(msgspec.Struct, frozen=True, tag="resource"):
    scope: str
    source: str
    lists: bool
    watches: bool


class EventData(msgspec.Struct, frozen=True, tag="event"):
    scope: str
    source: str
    title: str


PartData = ToolData | PromptData | ResourceData | EventData


class LoadFailure(msgspec.Struct, frozen=True):
    """Why the plugin is not loaded. `by_plugin`: the plugin raised it, and `fault` is the traceback."""

    fault: str
    by_plugin: bool = False


# -- calls


class ContextData(msgspec.Struct, frozen=True):
    """All data of a Context: the principal, and what its client can do."""

    principal: str
    place: str
    cwd: str | None
    wants_progress: bool
    held: bool
    can: list[str]
    knows: list[str]
    settings: Settings
    is_read_only: bool
    root: str
    sandbox: str
    output_folder: str
    private_folder: str | None
    skills: list[str]  # the folders, in order


class CallState(msgspec.Struct, frozen=True, rename="camel"):
    """A change of a call's data: it has become a task, or no longer can."""

    request_id: int
    held: bool
    wants_progress: bool


class CallFailure(msgspec.Struct, frozen=True, omit_defaults=True):
    """How a call has ended without a result: an error of the API, questions, its cancellation, or a traceback for the
    log. `questions` are the ids of the requests to the server that end it."""

    error: ErrorData | None = None
    questions: list[int] = []
    is_cancelled: bool = False
    fault: str | None = None
    cwd: str | None = None


class ContextAnswer(msgspec.Struct, frozen=True, omit_defaults=True):
    """The answer to a request of the process. `ends`: the request is a question that ends the call."""

    result: msgspec.Raw = NOTHING
    error: ErrorData | None = None
    ends: bool = False


class PluginEvent(msgspec.Struct, frozen=True):
    """An event of a type of the plugin has happened to a principal whose calls the process has seen."""

    name: str
    principal: str
    payload: Any
    key: str | None

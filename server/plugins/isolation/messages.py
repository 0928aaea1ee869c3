"""Define the messages between the server and a plugin's process."""

from typing import Any

import msgspec

from toolgate.server.base.rpc.errors import ErrorData
from toolgate.server.base.rpc.frames import NOTHING
from toolgate.tools.api.context.services import Settings
from toolgate.tools.api.function import Parameters
from toolgate.tools.api.prompt import PromptArgument
from toolgate.tools.api.tool import InPlan, ToolAnnotations

# -- parts


class ToolData(msgspec.Struct, frozen=True, tag="tool"):
    name: str
    title: str
    description: str
    annotations: ToolAnnotations
    input: dict[str, Any]
    output: dict[str, Any] | None
    scope: str
    source: str
    icons: list[dict[str, Any]] | None = None
    meta: dict[str, Any] | None = None
    as_task: bool = False
    lean: bool = False
    in_plan: InPlan = False
    has_context: bool = False
    parameters: Parameters | None = None


class PromptData(msgspec.Struct, frozen=True, tag="prompt"):
    name: str
    title: str
    description: str
    role: str
    arguments: list[PromptArgument]
    scope: str
    source: str
    icons: list[dict[str, Any]] | None = None
    meta: dict[str, Any] | None = None


class ResourceData(msgspec.Struct, frozen=True, tag="resource"):
    uri: str
    name: str
    title: str
    description: str
    mime_type: str | None
    scope: str
    source: str
    lists: bool
    watches: bool
    annotations: dict[str, Any] | None = None
    icons: list[dict[str, Any]] | None = None
    meta: dict[str, Any] | None = None


class EventData(msgspec.Struct, frozen=True, tag="event"):
    name: str
    title: str
    description: str
    input: dict[str, Any]
    payload: dict[str, Any]
    scope: str
    source: str
    meta: dict[str, Any] | None = None


PartData = ToolData | PromptData | ResourceData | EventData


# -- messages from the server


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


class BeginCall(msgspec.Struct, frozen=True, tag="begin", array_like=True):
    """Do `verb` with the part `key` of `kind`."""

    id: int
    verb: str
    kind: str
    key: str
    arguments: msgspec.Raw
    context: ContextData


class CancelCall(msgspec.Struct, frozen=True, tag="cancel", array_like=True):
    id: int


class ContextUpdate(msgspec.Struct, frozen=True, tag="changed", array_like=True):
    """A change of a call's data: it has become a task, or no longer can."""

    id: int
    held: bool
    wants_progress: bool


class ApiAnswer(msgspec.Struct, frozen=True, tag="answer", array_like=True):
    """The answer to the request `number`. `ends`: the request is a question that ends the call."""

    number: int
    result: msgspec.Raw = NOTHING
    error: ErrorData | None = None
    ends: bool = False


# -- messages from the process


class PluginReady(msgspec.Struct, frozen=True, tag="ready", array_like=True):
    parts: list[PartData]


class LoadFailure(msgspec.Struct, frozen=True, tag="unready", array_like=True):
    """Why the plugin is not loaded. `by_plugin`: the plugin raised it, and `fault` is the traceback."""

    fault: str
    by_plugin: bool = False


class CancelReceived(msgspec.Struct, frozen=True, tag="heard", array_like=True):
    """The cancellation has arrived, so the process is alive."""

    id: int


class ApiNote(msgspec.Struct, frozen=True, tag="note", array_like=True):
    """A message that needs no answer."""

    id: int
    name: str
    arguments: msgspec.Raw


class ApiRequest(msgspec.Struct, frozen=True, tag="request", array_like=True):
    """A message that needs one; `number` is unique in the process."""

    id: int
    number: int
    name: str
    arguments: msgspec.Raw


class EventNote(msgspec.Struct, frozen=True, tag="emitted", array_like=True):
    """An event of a type of the plugin has happened to a principal whose calls the process has seen."""

    name: str
    principal: str
    payload: msgspec.Raw
    key: str | None


class RequestWithdrawn(msgspec.Struct, frozen=True, tag="withdrawn", array_like=True):
    """The call no longer waits for the answer."""

    id: int
    number: int


class CallResult(msgspec.Struct, frozen=True, tag="ended", array_like=True):
    """A call has ended: with a result, an error of the API, questions, its cancellation, or a traceback for the log."""

    id: int
    result: msgspec.Raw = NOTHING
    error: ErrorData | None = None
    questions: list[int] = []  # numbers of the requests that ended it
    is_cancelled: bool = False
    fault: str | None = None
    cwd: str | None = None  # the caller's new folder, if it moved


FROM_SERVER = msgspec.json.Decoder(BeginCall | CancelCall | ContextUpdate | ApiAnswer)
FROM_WORKER = msgspec.json.Decoder(
    PluginReady | LoadFailure | CancelReceived | ApiNote | EventNote | ApiRequest | RequestWithdrawn | CallResult
)

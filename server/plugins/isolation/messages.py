"""Define the messages between the server and a plugin's process: JSON in frames with their length before them.

JSON, because what travels is JSON by nature, whole numbers of any size included. Each end accepts only the messages of
the other; what does not fit is a MalformedFrameError.
"""

import asyncio
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from toolgate.server.protocol.messages import replace_surrogates
from toolgate.tools.api import errors
from toolgate.tools.api.prompt import PromptArgument
from toolgate.tools.api.services import Settings
from toolgate.tools.api.tool import InPlan, ToolAnnotations
from toolgate.tools.web.page import AddressRefusedError, PageTimeoutError, PageUnreachableError

MAX_FRAME = 64 * 2**20  # bytes: four of the largest messages a client may send
LENGTH = struct.Struct(">I")
NOTHING = msgspec.Raw(b"null")
ASKING_ERRORS = (errors.CannotAskError, errors.UnansweredError, errors.StillWaitingError, errors.TasksUnsupportedError)
PAGE_ERRORS = (PageUnreachableError, PageTimeoutError, AddressRefusedError)
TOOL_ERRORS: dict[str, type[errors.ToolError]] = {
    error.__name__: error
    for error in (errors.ToolError, errors.NotFound, errors.WrongArgumentsError, *ASKING_ERRORS, *PAGE_ERRORS)
}
PYTHON_ERRORS = {
    error.__name__: error for error in (KeyError, LookupError, OverflowError, TimeoutError, ValueError, TypeError)
}

T = TypeVar("T")


class MalformedFrameError(Exception):
    """The other end broke the rules; the text completes "it sent …"."""


class ErrorData(msgspec.Struct, frozen=True, omit_defaults=True):
    """An error that the API names: those of tools with their fields, others with their arguments."""

    name: str
    text: str = ""
    arguments: list[Any] = []
    required: Any = None


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


PartData = ToolData | PromptData | ResourceData


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
    PluginReady | LoadFailure | CancelReceived | ApiNote | ApiRequest | RequestWithdrawn | CallResult
)


def encode(value: Any) -> bytes:
    """Return a value as JSON; what UTF-8 can't hold is replaced, as on the way to the client. Raises TypeError."""
    try:
        return msgspec.json.encode(value, enc_hook=_encode_path)
    except UnicodeEncodeError:
        return msgspec.json.encode(replace_surrogates(msgspec.to_builtins(value, enc_hook=_encode_path)))


def encode_raw(value: Any) -> msgspec.Raw:
    return msgspec.Raw(encode(value))


def create_decoder(kind: Any) -> "msgspec.json.Decoder[Any]":
    return msgspec.json.Decoder(kind, dec_hook=_decode_path)


def encode_frame(message: msgspec.Struct) -> bytes:
    """Return a message with its length before it. Raises OverflowError for one that no frame may hold."""
    data = encode(message)
    if len(data) > MAX_FRAME:
        raise OverflowError(f"{len(data):,} bytes, over {MAX_FRAME:,}")
    return LENGTH.pack(len(data)) + data


async def read_frame(source: asyncio.StreamReader, words: "msgspec.json.Decoder[T]") -> T:
    """Return the next message. Raises MalformedFrameError, and at the end EOFError or ConnectionError."""
    (size,) = LENGTH.unpack(await source.readexactly(LENGTH.size))
    if size > MAX_FRAME:
        raise MalformedFrameError(f"a message of {size:,} bytes, over {MAX_FRAME:,}")
    data = await source.readexactly(size)
    try:
        return words.decode(data)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise MalformedFrameError(f"an invalid message: {error}"[:300]) from None


def error_to_data(error: BaseException) -> ErrorData | None:
    """Return the error as the other end can raise it, or None for one the API does not name."""
    for kind in type(error).__mro__:
        if TOOL_ERRORS.get(kind.__name__) is kind:
            assert isinstance(error, errors.ToolError)
            required = error.required if isinstance(error, errors.CannotAskError) else None
            return ErrorData(kind.__name__, str(error.text), required=required)
        if PYTHON_ERRORS.get(kind.__name__) is kind:
            return ErrorData(kind.__name__, arguments=[_plain(argument) for argument in error.args])
    return None


def data_to_error(error: ErrorData) -> Exception:
    """Return the exception that `error_to_data` was given, as far as it was sent."""
    kind = TOOL_ERRORS.get(error.name)
    if kind is None:
        return PYTHON_ERRORS.get(error.name, RuntimeError)(*error.arguments)
    if issubclass(kind, errors.CannotAskError):
        required: Mapping[str, Any] = error.required if isinstance(error.required, dict) else {}
        return kind(error.text, dict(required))
    return kind(error.text)


def _plain(value: Any) -> Any:
    return value if isinstance(value, (str, int, float, bool, type(None))) else str(value)


def _encode_path(value: Any) -> Any:
    if isinstance(value, Path):
        return str(value)
    raise TypeError(f"{type(value).__name__} is no JSON value")


def _decode_path(kind: type, value: Any) -> Any:
    if kind is Path and isinstance(value, str) and "\0" not in value:
        return Path(value)
    raise ValueError(f"{value!r} is no {kind.__name__}"[:200])

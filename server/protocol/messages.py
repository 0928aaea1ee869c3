"""Decode and encode JSON-RPC messages. Pure; knows nothing of methods, sessions or transports.

A fault in a message is a value (`MalformedMessage`), never an exception: it is answered, and the session goes on.
Source: JSON-RPC 2.0; MCP basic, "Messages".
"""

import asyncio
import math
from collections.abc import Callable
from typing import Annotated, Any, Literal, overload

import msgspec

from toolgate.server.protocol.errors import InternalError, InvalidRequest, ParseError, RpcError
from toolgate.server.protocol.message_ids import MAX_ID, Id, find_id, find_id_fault, is_id
from toolgate.server.protocol.message_limits import MAX_STRUCTURE, Data, TooLargeError, measure

MAX_BATCH = 256  # messages; each becomes a task
MAX_SHOWN = 200  # characters of a decoder's complaint that an error repeats
SMALL = 128 * 1024  # bytes of a message that is decoded and handled in one turn: the worst decodes in 15 ms
PLAIN = 4 * 1024  # bytes of a message that is read as a request first: what is none is decoded again
MAX_LENIENT = 2**20  # bytes of a message for the lenient decoder, which has a fifth of the strict one's speed
MAX_LENIENT_STRUCTURE = 32 * 1024  # bytes of its structure


class Request(msgspec.Struct, frozen=True):
    id: Id
    method: str
    params: dict[str, Any] = {}


class Notification(msgspec.Struct, frozen=True):
    method: str
    params: dict[str, Any] = {}


class Response(msgspec.Struct, frozen=True):
    """The client's answer to a request of ours: either `result` or `error`."""

    id: Id | None
    result: Any = None
    error: Any = None


class MalformedMessage(msgspec.Struct, frozen=True):
    """A malformed message: the error that answers it, under its id if that could be read."""

    id: Id | None
    error: RpcError


class Result(msgspec.Struct, frozen=True):
    """Our answer, as on the wire. `result` is an object, or `msgspec.Raw` if already encoded."""

    id: Id
    result: Any
    jsonrpc: str = "2.0"


class Failure(msgspec.Struct, frozen=True):
    """Our error. `id` is None if the request's id could not be read."""

    id: Id | None
    error: RpcError


Inbound = Request | Notification | Response | MalformedMessage
Outbound = Request | Notification | Result | Failure | msgspec.Raw | list[Any]


class _AnyMessage(msgspec.Struct, forbid_unknown_fields=True):
    """The shape that all inbound messages are decoded into; the members present tell which it is.

    A message with other members is decoded as any JSON: this decoder would skip them, and not check their text.
    """

    jsonrpc: str | msgspec.UnsetType = msgspec.UNSET
    id: Any = msgspec.UNSET  # a float here would be parsed by msgspec
    method: str | msgspec.UnsetType = msgspec.UNSET
    params: dict[str, Any] | None | msgspec.UnsetType = msgspec.UNSET
    result: Any = msgspec.UNSET
    error: Any = msgspec.UNSET


class _PlainRequest(msgspec.Struct, forbid_unknown_fields=True):
    """A request as nearly all are: the decoder checks what `_classify` would."""

    jsonrpc: Literal["2.0"]
    id: int | Annotated[str, msgspec.Meta(max_length=MAX_ID)]
    method: str
    params: dict[str, Any] = {}


class _ErrorObject(msgspec.Struct, omit_defaults=True):
    code: int
    message: str
    data: Any = None


class _ErrorMessage(msgspec.Struct):
    id: Id | None
    error: _ErrorObject
    jsonrpc: str = "2.0"


class _RequestMessage(msgspec.Struct, omit_defaults=True):
    jsonrpc: str  # without a default, so that it is always encoded
    method: str
    id: Id | msgspec.UnsetType = msgspec.UNSET
    params: dict[str, Any] = {}


def _parse_float(text: str) -> float:
    """Return the number that JSON spells. Near the ends of the range msgspec takes ten times as long."""
    value = float(text)
    if math.isinf(value):
        raise ValueError("a number is out of range")
    return value


MEMBERS = _AnyMessage.__struct_fields__

_decode = msgspec.json.Decoder(_AnyMessage, float_hook=_parse_float).decode
_decode_request = msgspec.json.Decoder(_PlainRequest, float_hook=_parse_float).decode
_decode_any = msgspec.json.Decoder(float_hook=_parse_float).decode
_encode = msgspec.json.Encoder().encode


def decode(data: Data, most: int = MAX_STRUCTURE) -> Inbound | list[Inbound]:
    """Decode one message, or a batch (a list, also of one), with at most so many bytes of structure. Never raises for
    what is in `data`."""
    if len(data) <= PLAIN:
        try:
            plain = _decode_request(data)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            return _decode_measured(data)
        return Request(plain.id, plain.method, plain.params)
    try:
        for _ in measure(data, most):
            pass
    except TooLargeError as error:
        return _refuse_unread(data, error)
    return _decode_measured(data)


async def decode_in_turns(data: Data) -> Inbound | list[Inbound]:
    """Decode like `decode`, and let other tasks run after each piece of a large message."""
    if len(data) > SMALL:
        try:
            for _ in measure(data):
                await asyncio.sleep(0)
        except TooLargeError as error:
            return _refuse_unread(data, error)
        message = _decode_measured(data)
        await asyncio.sleep(0)  # decoding a large one gets its own turn
        return message
    return _decode_measured(data)


def decode_value(data: bytes) -> Any:
    """Decode any JSON, within the limits of a message. Raises ValueError, RecursionError."""
    try:
        for _ in measure(data):
            pass
    except TooLargeError as error:
        raise ValueError(str(error)) from None
    return _decode_any(data)


def encode(message: Outbound) -> bytes:
    """Encode one message (or a list, for a batch) as JSON without line breaks. Lone surrogates become "?".

    Raises TypeError for a value that JSON can't hold.
    """
    if type(message) is Result:  # as nearly all are
        return encode_value(message)
    return encode_value([_to_wire(item) for item in message] if isinstance(message, list) else _to_wire(message))


def encode_value(value: Any) -> bytes:
    """Encode a part of a message as JSON, in the same way."""
    try:
        return _encode(value)
    except UnicodeEncodeError:  # a lone surrogate, from a file name or an escape
        return _encode(replace_surrogates(msgspec.to_builtins(value)))


def refuse_too_large(message: Outbound) -> Failure:
    """Return the error that replaces an answer too large to send."""
    text = "there is no room for this answer: read the answers that were sent before, or ask for less at once"
    return Failure(message.id if isinstance(message, (Result, Failure)) else None, InternalError(text))


def _to_wire(message: Request | Notification | Result | Failure | msgspec.Raw) -> Any:
    match message:
        case msgspec.Raw() | Result():
            return message
        case Failure(id, error):
            return _ErrorMessage(id, _ErrorObject(error.code, error.message, error.data))
        case Request(id, method, params):
            return _RequestMessage("2.0", method, id, params)
        case Notification(method, params):
            return _RequestMessage("2.0", method, msgspec.UNSET, params)


def _classify(wire: _AnyMessage) -> Inbound:
    id = None if wire.id is msgspec.UNSET else wire.id
    fault = None if id is None else find_id_fault(id)
    if fault is not None:
        return MalformedMessage(None, InvalidRequest(fault))
    if wire.jsonrpc != "2.0":
        return MalformedMessage(id, InvalidRequest("'jsonrpc' must be \"2.0\""))
    if isinstance(wire.method, str):
        params = wire.params or {}
        if wire.id is msgspec.UNSET:
            return Notification(wire.method, params)
        if id is None:
            return MalformedMessage(None, InvalidRequest("'id' must be a string or an integer, not null"))
        return Request(id, wire.method, params)
    if wire.result is not msgspec.UNSET or wire.error is not msgspec.UNSET:
        result = None if wire.result is msgspec.UNSET else wire.result
        return Response(id, result, None if wire.error is msgspec.UNSET else wire.error)
    return MalformedMessage(id, InvalidRequest("the message has no method, result or error"))


def _decode_measured(data: Data) -> Inbound | list[Inbound]:
    try:
        return _classify(_decode(data))
    except msgspec.ValidationError:
        return _decode_oddity(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        return _decode_leniently(data, error)


def _refuse_unread(data: Data, error: TooLargeError) -> MalformedMessage:
    return MalformedMessage(find_id(data), InvalidRequest(str(error)))


def _decode_oddity(data: Data) -> Inbound | list[Inbound]:
    """Decode JSON that is not one message: a batch, or an error under the right id."""
    try:
        value = _decode_any(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        return _decode_leniently(data, error)
    return _convert_all(value, _convert)


def _decode_leniently(data: Data, error: Exception) -> Inbound | list[Inbound]:
    """Decode what a strict decoder refuses. A lone surrogate (half an emoji, as JavaScript sends it) is replaced. A
    number out of range is refused under its message's id. Anything else is not JSON."""
    import json  # start-up; few clients send this

    refusal = MalformedMessage(find_id(data), ParseError(f"not a JSON message: {error}"[:MAX_SHOWN]))
    if len(data) > MAX_LENIENT or (b"\\u" not in data and b"e" not in data and b"E" not in data):
        return refusal
    try:
        for _ in measure(data, MAX_LENIENT_STRUCTURE):
            pass
        text = bytes(data).decode()  # json.loads would take surrogates' bytes, and UTF-16
        return _convert_all(json.loads(text, parse_constant=_refuse_constant), _convert_lenient)
    except (TooLargeError, ValueError, RecursionError):
        return refusal


def _convert_all(value: Any, convert: Callable[[Any], Inbound]) -> Inbound | list[Inbound]:
    if not isinstance(value, list):
        return convert(value)
    if len(value) > MAX_BATCH:
        return MalformedMessage(None, InvalidRequest(f"the batch has more than {MAX_BATCH} messages"))
    return [convert(item) for item in value]


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is not JSON")


def _convert(value: Any) -> Inbound:
    members = {name: value[name] for name in MEMBERS if name in value} if isinstance(value, dict) else value
    try:
        return _classify(msgspec.convert(members, _AnyMessage))
    except (msgspec.ValidationError, RecursionError) as error:
        return _refuse_value(value, str(error))


def _convert_lenient(value: Any) -> Inbound:
    """Convert a value of the lenient decoder, which makes infinities of numbers out of range. An id is not changed: its
    answer would name another request."""
    id = value.get("id") if isinstance(value, dict) else None
    fault = find_id_fault(id) if isinstance(id, str) else None
    if fault is not None:
        return MalformedMessage(None, InvalidRequest(fault))
    if _has_infinity(value):
        return _refuse_value(value, "a number is out of range")
    return _convert(msgspec.to_builtins(replace_surrogates(value)))


def _refuse_value(value: Any, reason: str) -> MalformedMessage:
    id = value.get("id") if isinstance(value, dict) else None
    readable = id if is_id(id) and find_id_fault(id) is None else None
    return MalformedMessage(readable, InvalidRequest(f"not a JSON-RPC message: {reason}"[:MAX_SHOWN]))


def _has_infinity(value: Any) -> bool:
    if isinstance(value, float):
        return math.isinf(value)
    if isinstance(value, dict):
        return any(map(_has_infinity, value.values()))
    return isinstance(value, list) and any(map(_has_infinity, value))


@overload
def replace_surrogates(value: str) -> str: ...


@overload
def replace_surrogates(value: Any) -> Any: ...


def replace_surrogates(value: Any) -> Any:
    """Return the value with "?" for each lone surrogate (half an emoji) in its texts: UTF-8 can't encode one."""
    if isinstance(value, str):
        return value.encode("utf-8", "replace").decode()
    if isinstance(value, dict):
        return {replace_surrogates(key): replace_surrogates(item) for key, item in value.items()}
    if isinstance(value, list):
        return [replace_surrogates(item) for item in value]
    return value

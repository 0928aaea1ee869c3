"""Decode and encode JSON-RPC messages. Pure; knows nothing of methods, sessions or transports.

A fault in a message is a value (`MalformedMessage`), never an exception: it is answered, and the session goes on.
Source: JSON-RPC 2.0; MCP basic, "Messages" (ids are strings or integers and never null).
"""

import asyncio
import math
from collections.abc import Callable, Iterator
from typing import Annotated, Any, Literal, overload

import msgspec

from toolgate.server.protocol.errors import InternalError, InvalidRequest, ParseError, RpcError

Id = int | str

MAX_ID = 1_024  # characters: real ids are numbers or short, and each answer repeats one
MAX_BATCH = 256  # messages; each becomes a task
MAX_SHOWN = 200  # characters of a decoder's complaint that an error repeats

# A large message is large by its strings: a file, a picture. Decoding takes time and memory for values.
SMALL = 16 * 1024  # bytes of a message that is not measured: the worst takes 30 ms
PLAIN = 4 * 1024  # bytes of a message that is read as a request first: what is none is decoded again
MAX_STRUCTURE = 256 * 1024  # bytes outside of strings: 13,000 long numbers, or 87,000 objects in 30 ms
MAX_ESCAPES = 6 * 2**20  # backslashes: more than in 32 MiB of \\uXXXX text; so many take 21 ms
MAX_EXTREMES = 1_000  # numbers with exponents of three digits: one near the end of the range takes up to 15 µs
MAX_LENIENT = 2**20  # bytes of a message for the lenient decoder, which has a fifth of the strict one's speed
MAX_LENIENT_STRUCTURE = 32 * 1024  # bytes outside of its strings
MAX_SKIMMED = 4 * 2**20  # bytes of an undecoded message in which its id is looked for
PIECE = 2**20  # bytes measured at once: 5 ms
NUMERALS = bytes.maketrans(b"123456789E+", b"000000000e-")


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


class _AnyMessage(msgspec.Struct):
    """The shape that all inbound messages are decoded into; the members present tell which it is."""

    jsonrpc: str | msgspec.UnsetType = msgspec.UNSET
    id: int | str | None | msgspec.UnsetType = msgspec.UNSET
    method: str | msgspec.UnsetType = msgspec.UNSET
    params: dict[str, Any] | None | msgspec.UnsetType = msgspec.UNSET
    result: Any = msgspec.UNSET
    error: Any = msgspec.UNSET


class _PlainRequest(msgspec.Struct):
    """A request as nearly all are: the decoder checks what `_classify` would."""

    jsonrpc: Literal["2.0"]
    id: int | Annotated[str, msgspec.Meta(max_length=MAX_ID)]
    method: str
    params: dict[str, Any] = {}
    result: Any = msgspec.UNSET  # ignored, but decoded: else numbers and texts in it would not be checked
    error: Any = msgspec.UNSET


class _MessageId(msgspec.Struct):
    """The part that is read of a message too large to decode."""

    id: int | str | None = None


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


_decode = msgspec.json.Decoder(_AnyMessage).decode
_decode_request = msgspec.json.Decoder(_PlainRequest).decode
_decode_id = msgspec.json.Decoder(_MessageId).decode
_decode_any = msgspec.json.Decoder().decode
_encode = msgspec.json.Encoder().encode


def decode(data: bytes | bytearray | memoryview) -> Inbound | list[Inbound]:
    """Decode one message, or a batch (a list, also of one). Never raises for what is in `data`."""
    if len(data) <= PLAIN:
        try:
            plain = _decode_request(data)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            return _decode_measured(data)
        return Request(plain.id, plain.method, plain.params)
    if len(data) > SMALL:
        try:
            for _ in _measure(data, MAX_STRUCTURE):
                pass
        except _TooLargeError as error:
            return _refuse_unread(data, error)
    return _decode_measured(data)


async def decode_in_turns(data: bytes | bytearray | memoryview) -> Inbound | list[Inbound]:
    """Decode like `decode`, and let other tasks run after each piece of a large message."""
    if len(data) > SMALL:
        try:
            for _ in _measure(data, MAX_STRUCTURE):
                await asyncio.sleep(0)
        except _TooLargeError as error:
            return _refuse_unread(data, error)
        message = _decode_measured(data)
        await asyncio.sleep(0)  # decoding a large one gets its own turn
        return message
    return _decode_measured(data)


def decode_value(data: bytes) -> Any:
    """Decode any JSON, within the limits of a message. Raises ValueError, RecursionError."""
    if len(data) > SMALL:
        try:
            for _ in _measure(data, MAX_STRUCTURE):
                pass
        except _TooLargeError as error:
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
    given = None if wire.id is msgspec.UNSET else wire.id
    if wire.jsonrpc != "2.0":
        return MalformedMessage(given, InvalidRequest("'jsonrpc' must be \"2.0\""))
    if type(given) is str and len(given) > MAX_ID:
        return MalformedMessage(None, InvalidRequest(f"'id' is longer than {MAX_ID} characters"))
    if isinstance(wire.method, str):
        params = wire.params or {}
        if wire.id is msgspec.UNSET:
            return Notification(wire.method, params)
        if wire.id is None:
            return MalformedMessage(None, InvalidRequest("'id' must be a string or an integer, not null"))
        return Request(wire.id, wire.method, params)
    if wire.result is not msgspec.UNSET or wire.error is not msgspec.UNSET:
        result = None if wire.result is msgspec.UNSET else wire.result
        return Response(given, result, None if wire.error is msgspec.UNSET else wire.error)
    return MalformedMessage(given, InvalidRequest("the message has no method, result or error"))


def _decode_measured(data: bytes | bytearray | memoryview) -> Inbound | list[Inbound]:
    try:
        return _classify(_decode(data))
    except msgspec.ValidationError:
        return _decode_oddity(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        return _decode_leniently(data, error)


class _TooLargeError(Exception):
    """A message has too many values; the text says which."""


def _measure(data: bytes | bytearray | memoryview, limit: int) -> Iterator[None]:
    """Raise _TooLargeError for too many bytes outside of strings, too many escapes, or too many slow numbers.

    Yields None after each piece. Invalid JSON is measured too; the decoder refuses it later.
    """
    size = escapes = extremes = begin = 0
    is_inside = False
    while begin < len(data):
        if begin:
            yield
        piece = bytes(data[begin : begin + PIECE])
        if (len(piece) - len(piece.rstrip(b"\\"))) % 2 and len(piece) > 1:
            piece = piece[:-1]  # keep a backslash with the character it escapes
        begin += len(piece)
        if b"\\" in piece:
            escapes += piece.count(b"\\")
            piece = piece.replace(b"\\\\", b"").replace(b'\\"', b"")
        parts = piece.split(b'"', 2 * limit)
        outside = b" ".join(parts[is_inside::2])
        is_inside ^= len(parts) % 2 == 0
        size += len(outside)
        numerals = outside.translate(NUMERALS)
        extremes += numerals.count(b"e-000") + numerals.count(b"e000")
        if size > limit:
            raise _TooLargeError(f"more than {limit} bytes of a message are outside of its strings")
        if escapes > MAX_ESCAPES:
            raise _TooLargeError(f"more than {MAX_ESCAPES} characters of a message are escaped")
        if extremes > MAX_EXTREMES:
            raise _TooLargeError(f"more than {MAX_EXTREMES} numbers of a message have exponents of three digits")


def _refuse_unread(data: bytes | bytearray | memoryview, error: _TooLargeError) -> MalformedMessage:
    return MalformedMessage(_read_id(data) if len(data) <= MAX_SKIMMED else None, InvalidRequest(str(error)))


def _read_id(data: bytes | bytearray | memoryview) -> Id | None:
    """Return the id of an undecoded message, or None if it can't be read."""
    try:
        found = _decode_id(data).id
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None
    return found if isinstance(found, int) or (found is not None and len(found) <= MAX_ID) else None


def _decode_oddity(data: bytes | bytearray | memoryview) -> Inbound | list[Inbound]:
    """Decode JSON that is not one message: a batch, or an error under the right id."""
    try:
        value = _decode_any(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        return _decode_leniently(data, error)
    return _convert_all(value, _convert)


def _decode_leniently(data: bytes | bytearray | memoryview, error: Exception) -> Inbound | list[Inbound]:
    """Decode what a strict decoder refuses. A lone surrogate (half an emoji, as JavaScript sends it) is replaced. A
    number out of range is refused under its message's id. Anything else is not JSON."""
    import json  # start-up; few clients send this

    refusal = MalformedMessage(None, ParseError(f"not a JSON message: {error}"[:MAX_SHOWN]))
    if len(data) > MAX_LENIENT or (b"\\u" not in data and b"e" not in data and b"E" not in data):
        return refusal
    try:
        for _ in _measure(data, MAX_LENIENT_STRUCTURE):
            pass
        value = msgspec.to_builtins(replace_surrogates(json.loads(bytes(data), parse_constant=_refuse_constant)))
        return _convert_all(value, _convert_finite)
    except (_TooLargeError, ValueError, RecursionError):
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
    try:
        return _classify(msgspec.convert(value, _AnyMessage))
    except (msgspec.ValidationError, RecursionError) as error:
        return _refuse_value(value, str(error))


def _convert_finite(value: Any) -> Inbound:
    """Convert the value, and refuse infinities: the lenient decoder makes them of numbers out of range."""
    return _refuse_value(value, "a number is out of range") if _has_infinity(value) else _convert(value)


def _refuse_value(value: Any, reason: str) -> MalformedMessage:
    given = value.get("id") if isinstance(value, dict) else None
    readable = given if type(given) is int or (type(given) is str and len(given) <= MAX_ID) else None
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

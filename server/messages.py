"""JSON-RPC messages: bytes to values and back. Pure; knows nothing of methods, sessions or transports.

What is wrong with a message is itself a value (`Malformed`): a bad line is answered and survived, never raised.
Source: JSON-RPC 2.0; MCP basic, "Messages" (ids are strings or integers and never null).
"""

import math
from typing import Any

import msgspec

from toolgate.server.errors import InvalidRequest, ParseError, RpcError

Id = int | str

MAX_BATCH = 256  # messages; each becomes a task
MAX_SHOWN = 200  # characters of a decoder's complaint told back


class Request(msgspec.Struct, frozen=True):
    id: Id
    method: str
    params: dict[str, Any] = {}


class Notification(msgspec.Struct, frozen=True):
    method: str
    params: dict[str, Any] = {}


class Response(msgspec.Struct, frozen=True):
    """What the other side answered to a request of ours: one of `result` and `error`."""

    id: Id | None
    result: Any = None
    error: Any = None


class Malformed(msgspec.Struct, frozen=True):
    """A message that is none: the error it is answered with, under its id where that could be read."""

    id: Id | None
    error: RpcError


class Result(msgspec.Struct, frozen=True):
    """Our answer. `result` is an object, or `msgspec.Raw` when it was encoded before."""

    id: Id
    result: Any


class Failure(msgspec.Struct, frozen=True):
    """Our refusal. `id` is None where the request's id could not be read."""

    id: Id | None
    error: RpcError


Inbound = Request | Notification | Response | Malformed
Outbound = Request | Notification | Result | Failure | msgspec.Raw | list[Any]


class _Wire(msgspec.Struct):
    """The one shape all inbound messages are decoded into; which they are is seen from what is there."""

    jsonrpc: str | msgspec.UnsetType = msgspec.UNSET
    id: int | str | None | msgspec.UnsetType = msgspec.UNSET
    method: str | msgspec.UnsetType = msgspec.UNSET
    params: dict[str, Any] | None | msgspec.UnsetType = msgspec.UNSET
    result: Any = msgspec.UNSET
    error: Any = msgspec.UNSET


class _Answer(msgspec.Struct):
    id: Id
    result: Any
    jsonrpc: str = "2.0"


class _Error(msgspec.Struct, omit_defaults=True):
    code: int
    message: str
    data: Any = None


class _Refusal(msgspec.Struct):
    id: Id | None
    error: _Error
    jsonrpc: str = "2.0"


class _Call(msgspec.Struct, omit_defaults=True):
    jsonrpc: str  # without a default, so that it is never left out
    method: str
    id: Id | msgspec.UnsetType = msgspec.UNSET
    params: dict[str, Any] = {}


_decode = msgspec.json.Decoder(_Wire).decode
_decode_any = msgspec.json.Decoder().decode
_encode = msgspec.json.Encoder().encode


def decode(data: bytes | bytearray | memoryview) -> Inbound | list[Inbound]:
    """Decode one message, or a batch (a list, also of one). Never raises for what is in `data`."""
    try:
        return _classify(_decode(data))
    except msgspec.ValidationError:
        return _decode_oddity(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        return _decode_leniently(data, error)


def encode(message: Outbound) -> bytes:
    """One message (or a list of them, for a batch) as JSON without line breaks. What UTF-8 can't hold is replaced.

    Raises TypeError for a value that JSON can't hold.
    """
    return spelled([_shape(item) for item in message] if isinstance(message, list) else _shape(message))


def spelled(value: Any) -> bytes:
    """A part of a message as JSON, in the same way."""
    try:
        return _encode(value)
    except UnicodeEncodeError:  # a lone surrogate, from a file name or an escape
        return _encode(scrubbed(msgspec.to_builtins(value)))


def _shape(message: Request | Notification | Result | Failure | msgspec.Raw) -> Any:
    match message:
        case msgspec.Raw():
            return message
        case Result(id, result):
            return _Answer(id, result)
        case Failure(id, error):
            return _Refusal(id, _Error(error.code, error.message, error.data))
        case Request(id, method, params):
            return _Call("2.0", method, id, params)
        case Notification(method, params):
            return _Call("2.0", method, msgspec.UNSET, params)


def _classify(wire: _Wire) -> Inbound:
    given = None if wire.id is msgspec.UNSET else wire.id
    if wire.jsonrpc != "2.0":
        return Malformed(given, InvalidRequest("'jsonrpc' must be \"2.0\""))
    if isinstance(wire.method, str):
        params = wire.params or {}
        if wire.id is msgspec.UNSET:
            return Notification(wire.method, params)
        if wire.id is None:
            return Malformed(None, InvalidRequest("'id' must be a string or an integer, not null"))
        return Request(wire.id, wire.method, params)
    if wire.result is not msgspec.UNSET or wire.error is not msgspec.UNSET:
        result = None if wire.result is msgspec.UNSET else wire.result
        return Response(given, result, None if wire.error is msgspec.UNSET else wire.error)
    return Malformed(given, InvalidRequest("neither a method, a result nor an error"))


def _decode_oddity(data: bytes | bytearray | memoryview) -> Inbound | list[Inbound]:
    """JSON, but not one message of the right shape: a batch, or something to refuse under the right id."""
    try:
        value = _decode_any(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        return _decode_leniently(data, error)
    return _sorted(value)


def _decode_leniently(data: bytes | bytearray | memoryview, error: Exception) -> Inbound | list[Inbound]:
    """What a strict decoder refuses: a lone surrogate (half an emoji, as JavaScript sends it) is replaced, a number
    beyond all bounds is refused under its message's id. Anything else is not JSON."""
    import json  # start-up: hardly anyone sends this

    refusal = Malformed(None, ParseError(f"not a JSON message: {error}"[:MAX_SHOWN]))
    if b"\\u" not in data and b"e" not in data and b"E" not in data:
        return refusal
    try:
        value = json.loads(bytes(data), parse_constant=_refuse_constant)
        return _sorted(msgspec.to_builtins(scrubbed(value)))
    except (ValueError, RecursionError):
        return refusal


def _sorted(value: Any) -> Inbound | list[Inbound]:
    if not isinstance(value, list):
        return _convert(value)
    if len(value) > MAX_BATCH:
        return Malformed(None, InvalidRequest(f"a batch of more than {MAX_BATCH} messages"))
    return [_convert(item) for item in value]


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is not JSON")


def _convert(value: Any) -> Inbound:
    try:
        if _has_infinity(value):
            raise msgspec.ValidationError("a number is out of range")
        return _classify(msgspec.convert(value, _Wire))
    except (msgspec.ValidationError, RecursionError) as error:
        given = value.get("id") if isinstance(value, dict) else None
        readable = given if type(given) in (int, str) else None
        return Malformed(readable, InvalidRequest(f"not a JSON-RPC message: {error}"[:MAX_SHOWN]))


def _has_infinity(value: Any) -> bool:
    if isinstance(value, float):
        return math.isinf(value)
    if isinstance(value, dict):
        return any(map(_has_infinity, value.values()))
    return isinstance(value, list) and any(map(_has_infinity, value))


def scrubbed(value: Any) -> Any:
    if isinstance(value, str):
        return value.encode("utf-8", "replace").decode()
    if isinstance(value, dict):
        return {scrubbed(key): scrubbed(item) for key, item in value.items()}
    if isinstance(value, list):
        return [scrubbed(item) for item in value]
    return value

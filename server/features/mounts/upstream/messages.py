"""Decode and encode JSON-RPC messages whose values pass unchanged: numbers, unknown members and the order of keys."""

from collections.abc import Mapping
from typing import Any

import msgspec

from toolgate.server.features.mounts.upstream.errors import MountError, UpstreamRefusal
from toolgate.server.protocol.message_limits import TooLargeError, measure
from toolgate.server.protocol.messages import encode_value

MAX_MESSAGE = 32 * 2**20  # bytes
MAX_STRUCTURE = 2**20  # bytes of its structure: decoding them takes a tenth of a second
MAX_SHOWN = 500  # characters of a mount's own words
INTERNAL = -32603

Members = dict[str, msgspec.Raw]


class UpstreamMessage(msgspec.Struct):
    """One message of a mounted server, its values as they came."""

    id: Any = msgspec.UNSET
    method: str | msgspec.UnsetType = msgspec.UNSET
    params: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    result: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    error: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET

    @property
    def has_method(self) -> bool:
        return self.method is not msgspec.UNSET

    @property
    def has_id(self) -> bool:
        return self.id is not msgspec.UNSET and self.id is not None


_decode_members = msgspec.json.Decoder(Members).decode
_decode_message = msgspec.json.Decoder(UpstreamMessage).decode
_decode_all = msgspec.json.Decoder(list[UpstreamMessage]).decode


def decode_messages(data: bytes) -> list[UpstreamMessage]:
    """Return the messages in `data`: one, or a batch. Raises MountError for what is none, and for one too large."""
    if len(data) > MAX_MESSAGE:
        raise MountError("TOO_LARGE", f"it sent a message of more than {MAX_MESSAGE // 2**20} MiB")
    try:
        for _ in measure(data, MAX_STRUCTURE):
            pass
        msgspec.json.decode(data)  # a raw value is not checked otherwise, and goes to our client as it is
        data = _on_one_line(data)
        return _decode_all(data) if data.startswith(b"[") else [_decode_message(data)]
    except TooLargeError:
        raise MountError("TOO_LARGE", "it sent a message with too many values, or nested too deeply") from None
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        raise MountError("BAD_MESSAGE", "it sent something that is no JSON-RPC message") from None


def split_object(value: msgspec.Raw | msgspec.UnsetType) -> Members | None:
    """Return the members of an object as they came, or None for another value."""
    try:
        return None if isinstance(value, msgspec.UnsetType) else _decode_members(value)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return None


def measure_members(members: Members) -> int:
    """Return the size of an object in bytes."""
    return sum(len(bytes(value)) for value in members.values())


def read_value(value: msgspec.Raw | msgspec.UnsetType) -> Any:
    """Return the decoded value, None if there is none."""
    return None if isinstance(value, msgspec.UnsetType) else msgspec.json.decode(value)


def read_object(value: msgspec.Raw | msgspec.UnsetType) -> dict[str, Any]:
    """Return the decoded object, empty for another value."""
    found = read_value(value)
    return found if isinstance(found, dict) else {}


def read_refusal(error: msgspec.Raw) -> UpstreamRefusal:
    """Return the error of an answer."""
    told = read_object(error)
    code = told.get("code")
    known = code if type(code) is int else INTERNAL
    return UpstreamRefusal(known, str(told.get("message", "no reason given"))[:MAX_SHOWN], told.get("data"))


def encode_request(id: int, method: str, params: Mapping[str, Any]) -> bytes:
    return encode_value({"jsonrpc": "2.0", "id": id, "method": method, "params": params})


def encode_notification(method: str, params: Mapping[str, Any]) -> bytes:
    if not params:
        return encode_value({"jsonrpc": "2.0", "method": method})
    return encode_value({"jsonrpc": "2.0", "method": method, "params": params})


def encode_answer(id: Any, result: Any) -> bytes:
    return encode_value({"jsonrpc": "2.0", "id": id, "result": result})


def encode_refusal(id: Any, code: int, message: str) -> bytes:
    return encode_value({"jsonrpc": "2.0", "id": id, "error": {"code": code, "message": message}})


def _on_one_line(data: bytes) -> bytes:
    """Return the JSON without line breaks between its values: a raw value becomes a part of our line."""
    data = data.strip()
    return msgspec.json.format(data, indent=-1) if b"\n" in data or b"\r" in data else data

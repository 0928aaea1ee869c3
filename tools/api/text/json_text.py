"""Decode JSON from files, other processes and arguments, with one error for whatever is wrong with it.

msgspec raises errors of its own for bad syntax and types, UnicodeDecodeError for bytes that are not UTF-8, and
RecursionError for depth. A caller that catches the first kind alone fails at the others.
"""

import math
from typing import Any, TypeVar, overload

import msgspec

T = TypeVar("T")

MAX_STRUCTURE = 256 * 1024  # bytes of STRUCTURE, as of a message (server/protocol/message_limits.py)
STRUCTURE = b"{}[],:.0123456789"  # each value but a literal has a byte of it, or a comma
OTHERS = bytes(set(range(256)).difference(STRUCTURE))


class JsonError(ValueError):
    """The text is not JSON, or not of the type; the error says what is wrong."""


@overload
def decode_json(data: bytes | str) -> Any: ...
@overload
def decode_json(data: bytes | str, kind: type[T]) -> T: ...
def decode_json(data: bytes | str, kind: Any = Any) -> Any:
    """Return the value in `data` as `kind`. Raises JsonError."""
    try:
        if isinstance(data, bytes):
            data.decode()  # msgspec does not look at members that the type lacks
        return msgspec.json.decode(data, type=kind)
    except UnicodeDecodeError:
        raise JsonError("it is not UTF-8") from None
    except RecursionError:
        raise JsonError("it is nested too deeply") from None
    except (msgspec.MsgspecError, ValueError) as error:
        raise JsonError(str(error)) from None


def decode_argument(text: str) -> Any:
    """Return the value of a JSON text within an argument, within the limits of a message. Raises JsonError, also for an
    object that has a name twice: such a text spells no single value."""
    import json  # start-up: few clients send such a text

    if len(text.encode("utf-8", "replace").translate(None, OTHERS)) > MAX_STRUCTURE:
        raise JsonError(f"its objects, arrays and numbers take more than {MAX_STRUCTURE} bytes")
    try:
        value = json.loads(text, object_pairs_hook=_to_object, parse_float=parse_float, parse_constant=_refuse_constant)
        if "\\u" in text:
            json.dumps(value, ensure_ascii=False).encode()  # fails for half a character
        return value
    except RecursionError:
        raise JsonError("it is nested too deeply") from None
    except ValueError as error:
        raise JsonError(str(error)) from None


def parse_float(text: str) -> float:
    """Return the number that JSON spells. Raises ValueError for one out of range."""
    value = float(text)
    if math.isinf(value):
        raise ValueError("a number is out of range")
    return value


def _to_object(members: list[tuple[str, Any]]) -> dict[str, Any]:
    value = dict(members)
    if len(value) < len(members):
        raise ValueError("an object has a name twice")
    return value


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is not JSON")

"""Decode JSON from files and other processes, with one error for whatever is wrong with it.

msgspec raises errors of its own for bad syntax and types, UnicodeDecodeError for bytes that are not UTF-8, and
RecursionError for depth. A caller that catches the first kind alone fails at the others.
"""

from typing import Any, TypeVar, overload

import msgspec

T = TypeVar("T")


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

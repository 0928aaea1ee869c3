"""Check the ids of messages, and find the id of a message that can't be decoded.

Ids and progress tokens are strings or integers. To JSON 7.0 is an integer, too, and goes back as 7.0.
Source: JSON-RPC 2.0 section 4; MCP basic, "Messages"; JSON Schema 2020-12 Core section 4.2.1 (numbers).
"""

import re
from typing import TypeGuard

import msgspec

Id = int | float | str  # a float is a whole number; equal numbers are one id

MAX_ID = 1_024  # characters: real ids are numbers or short, and each answer repeats one
EXACT = 2**53  # above, a float stands for several integers, and an answer would name another one
EDGE = 8 * 1024  # bytes at each end of a message in which its id is looked for

# Members with plain values, before the id and after it. The possessive *+ gives nothing back: no text takes long.
_STRING = rb'"(?:[^"\\]|\\.)*+"'
_PLAIN = rb"(?:%b|[-+.0-9A-Za-z]++)" % _STRING
_MEMBER = rb"\s*+%b\s*+:\s*+%b\s*+" % (_STRING, _PLAIN)
_ID = rb'\s*+"id"\s*+:\s*+(%b)\s*+' % _PLAIN
_OTHER = rb'(?!\s*+"id"\s*+:)%b' % _MEMBER
_FIRST = re.compile(rb"\s*+\{(?:%b,)*+%b[,}]" % (_OTHER, _ID))
_LAST = re.compile(rb"[,{]%b(?:,%b)*+\}\s*+\Z" % (_ID, _OTHER))

_decode = msgspec.json.Decoder(Id).decode


def is_id(value: object) -> TypeGuard[Id]:
    """Return whether the value is a string or an integer."""
    if type(value) is float:
        return value.is_integer() and abs(value) <= EXACT
    return type(value) in (int, str)


def find_id_fault(value: object) -> str | None:
    """Return what is wrong with the id of a message, or None. An answer repeats it, so it must be short and valid."""
    if not is_id(value):
        example = (
            f", not {msgspec.json.encode(value).decode()}" if value is None or isinstance(value, (bool, float)) else ""
        )
        return f"'id' must be a string or an integer{example}"
    if not isinstance(value, str) or (len(value) <= MAX_ID and value.isascii()):
        return None
    if len(value) > MAX_ID:
        return f"'id' is longer than {MAX_ID} characters"
    return None if value.encode("utf-8", "replace").decode() == value else "'id' has half of a surrogate pair"


class MessageEdges:
    """The two ends of a message that is read in parts and not kept."""

    def __init__(self) -> None:
        self._first = self._last = b""

    def add(self, part: bytes | bytearray | memoryview) -> None:
        """Add the next part of the message."""
        if len(self._first) < EDGE:
            self._first += part[: EDGE - len(self._first)]
        self._last = (self._last + part[-EDGE:])[-EDGE:]

    def find_id(self) -> Id | None:
        """Return the id, or None if neither end has it: among the first members with plain values, or the last."""
        match = _FIRST.match(self._first) or _LAST.search(self._last)
        if match is None:
            return None
        try:
            value = _decode(match[1])
        except (msgspec.MsgspecError, UnicodeDecodeError):
            return None
        return None if find_id_fault(value) else value


def find_id(data: bytes | bytearray | memoryview) -> Id | None:
    """Return the id of a message that can't be decoded, or None."""
    edges = MessageEdges()
    edges.add(data)
    return edges.find_id()

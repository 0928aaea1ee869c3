"""Limit what a large message may hold, before it is decoded.

A large message is large by its strings: a file, a picture. Decoding takes time and memory for values.
"""

from collections.abc import Iterator

Data = bytes | bytearray | memoryview

MAX_STRUCTURE = 256 * 1024  # bytes of STRUCTURE: 87,000 objects in 30 ms, or 65,000 numbers in 20 ms
MAX_ESCAPES = 6 * 2**20  # backslashes: more than in 32 MiB of \\uXXXX text; so many take 21 ms
PIECE = 2**20  # bytes measured at once: 5 ms

STRUCTURE = b"{}[],:.0123456789"  # what values are counted by: each one but a literal has a byte of it, or a comma
ESCAPE = b"\\"
OTHERS = bytes(set(range(256)).difference(STRUCTURE))
OTHERS_IN_STRINGS = bytes(set(OTHERS).difference(ESCAPE))


class TooLargeError(Exception):
    """A message has too many values or escapes; the text says which."""


def measure(data: Data, limit: int = MAX_STRUCTURE) -> Iterator[None]:
    """Raise TooLargeError for more than `limit` bytes of structure outside of strings, or more than MAX_ESCAPES.

    First strings are counted too, at a sixth of the cost: few messages have so much in all. Yields None between two
    pieces. Invalid JSON is measured like other data; the decoder refuses it later.
    """
    if len(data) <= limit:
        return
    size = 0
    for begin in range(0, len(data), PIECE):
        if begin:
            yield
        size += len(bytes(data[begin : begin + PIECE]).translate(None, OTHERS_IN_STRINGS))
        if size > limit:
            yield from _measure_outside(data, limit)
            return


def _measure_outside(data: Data, limit: int) -> Iterator[None]:
    size = escapes = begin = 0
    is_inside = False
    while begin < len(data):
        if begin:
            yield
        piece = bytes(data[begin : begin + PIECE])
        if (len(piece) - len(piece.rstrip(ESCAPE))) % 2 and len(piece) > 1:
            piece = piece[:-1]  # keep a backslash with the character it escapes
        begin += len(piece)
        if ESCAPE in piece:
            escapes += piece.count(ESCAPE)
            piece = piece.replace(b"\\\\", b"").replace(b'\\"', b"")
        parts = piece.split(b'"', 2 * limit)
        size += len(b"".join(parts[is_inside::2]).translate(None, OTHERS))
        is_inside ^= len(parts) % 2 == 0
        if size > limit:
            raise TooLargeError(f"the objects, arrays and numbers of a message take more than {limit} bytes")
        if escapes > MAX_ESCAPES:
            raise TooLargeError(f"more than {MAX_ESCAPES} characters of a message are escaped")

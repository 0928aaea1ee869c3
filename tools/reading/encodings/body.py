"""Decode a body: by its byte order mark, the header, itself, as UTF-8, or by detection."""

from typing import NamedTuple

from toolgate.tools.reading.encodings import decoders, detection
from toolgate.tools.reading.encodings.declaration import find_header_encoding, find_mark, find_own_encoding

CUT_WITHIN = 4_096  # bytes from the beginning in which a broken letter of UTF-8 is no cut of a limit
SURE = 4  # letters of UTF-8 that no text in a Chinese, Japanese or Korean encoding contains by chance
WIDE = ("utf-16le", "utf-16be")
TWO_BYTES = frozenset({"gbk", "gb18030", "big5", "euc-jp", "euc-kr", "shift_jis"})


class DecodedBody(NamedTuple):
    """The text of a body, its encoding, and a note for the reader ("" if there is nothing to tell)."""

    text: str
    encoding: str
    note: str = ""


def decode_body(body: bytes, content_type: str, *, is_html: bool) -> DecodedBody:
    """Return the text of a body; bytes that do not fit its encoding are replaced.

    The encoding is the byte order mark's, else the header's, else UTF-8 if the body is valid and has more than ASCII,
    else the body's own, else the one that detection finds.
    """
    mark = find_mark(body)
    if mark is not None:
        name, length = mark
        return DecodedBody(decoders.decode_as(body[length:], name), name)
    declared = find_header_encoding(content_type)
    if declared is None:
        declared = find_own_encoding(body, is_html=is_html)
        utf_8 = None if declared in WIDE else _read_utf_8(body, declared)
        if utf_8 is not None:
            return DecodedBody(utf_8, "utf-8")
    if declared is not None:
        return DecodedBody(decoders.decode_as(body, declared), declared, _describe_refusal(declared))
    name = detection.detect_encoding(body)
    note = "" if name == "utf-8" else f"its encoding is not declared: read as {name}"
    return DecodedBody(decoders.decode_as(body, name), name, note)


def needs_detection(body: bytes, content_type: str) -> bool:
    """Return whether the encoding may have to be detected, which takes longer. It is cheap for a short body."""
    if body.isascii() or find_mark(body) is not None or find_header_encoding(content_type) is not None:
        return False
    return _read_utf_8(body, None) is None


def is_wide(body: bytes) -> bool:
    """Return whether a body is text in UTF-16, whose NUL bytes make it look like a program."""
    mark = find_mark(body)
    return mark[0] in WIDE if mark else bool(detection.detect_utf_16(body))


def load_codecs() -> None:
    """Load all that decoding needs: a confined worker can load nothing later."""
    decoders.load_codecs()
    detection.load_tables()


def _describe_refusal(name: str) -> str:
    if name != "replacement":
        return ""
    return "it declares an encoding that browsers refuse to read, since it hides scripts from filters"


def _read_utf_8(body: bytes, declared: str | None) -> str | None:
    """Return the text if the body is valid UTF-8, not plain ASCII, and not likely to be what it declares."""
    if body.isascii():
        return None
    try:
        text = body.decode()
    except UnicodeDecodeError as error:
        is_cut = error.reason == "unexpected end of data" and error.start > CUT_WITHIN  # by a limit, within a letter
        return body.decode("utf-8", "replace") if is_cut else None
    if declared in TWO_BYTES and len(text.encode("ascii", "ignore")) > len(text) - SURE:
        return None
    return text

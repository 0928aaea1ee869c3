"""Find the encoding that a body or its Content-Type declares.

HTML is searched as in the HTML standard (parsing, "prescan a byte stream to determine its encoding"), with two
differences. More bytes are searched, and a script or style does not count.
"""

import codecs
import re
from collections.abc import Iterator

from toolgate.tools.reading.encodings.labels import find_encoding

BOMS = ((codecs.BOM_UTF8, "utf-8"), (codecs.BOM_UTF16_LE, "utf-16le"), (codecs.BOM_UTF16_BE, "utf-16be"))
PRESCAN = 16_384  # bytes that are searched; the standard has 1,024, but browsers go on through a long head
HEADER = re.compile(r"""charset\s*=\s*(?:"([^"]{0,60})"|'([^']{0,60})'|([^\s;,"']{1,60}))""", re.IGNORECASE)
XML = re.compile(rb"""\s*<\?xml[^>]{0,200}?\sencoding\s*=\s*["']([^"']{1,60})["']""")
UTF_16_XML = ((b"<\0?\0x\0", "utf-16le"), (b"\0<\0?\0x", "utf-16be"))
STYLE_SHEET = re.compile(rb'@charset "([^"]{1,60})";')  # CSS Syntax, section 3.2
SOURCE_LINE = re.compile(
    rb"[ \t\f]*(?:#|//|/\*|--|;|%|<!--|\"|\.\\\").{0,200}?coding[:=][ \t]*([-\w.]{1,60})"
)  # PEP 263
META = re.compile(rb"<meta(?=[\s/])", re.IGNORECASE)
TAG = re.compile(rb"</?[a-z]", re.IGNORECASE)
END_OF_NAME = re.compile(rb"[\s/>]")
ATTRIBUTE = re.compile(rb"""[\s/]*([^\s/>=][^\s/>=]*)(?:\s*=\s*(?:"([^"]*)"|'([^']*)'|([^\s>]*)))?""")
RAW_TEXT = re.compile(rb"<(script|style|title|textarea|xmp|iframe|noembed|noframes)(?=[\s/>])", re.IGNORECASE)


def find_mark(body: bytes) -> tuple[str, int] | None:
    """Return the encoding that a byte order mark names and the mark's length, or None."""
    for mark, name in BOMS:
        if body.startswith(mark):
            return name, len(mark)
    return None


def find_header_encoding(content_type: str) -> str | None:
    """Return the encoding that a Content-Type declares by a known label, or None."""
    found = HEADER.search(content_type)
    return None if found is None else find_encoding(next(filter(None, found.groups()), ""))


def find_own_encoding(body: bytes, *, is_html: bool) -> str | None:
    """Return the encoding that a body declares itself by a known label, or None."""
    start = body[:PRESCAN]
    for pattern, wide in UTF_16_XML:
        if start.startswith(pattern):
            return wide
    label = _find_label(start, is_html=is_html)
    name = None if label is None else find_encoding(label)
    if name in ("utf-16le", "utf-16be"):
        return "utf-8"  # the label itself would not be readable in UTF-16
    return "windows-1252" if name == "x-user-defined" else name


def _find_label(start: bytes, *, is_html: bool) -> str | None:
    found = XML.match(start) or STYLE_SHEET.match(start)
    if found is None and not is_html:
        lines = start.split(b"\n", 2)[:2]
        found = next(filter(None, map(SOURCE_LINE.match, lines)), None)
    if found is not None:
        return found[1].decode("latin-1")
    return next(filter(_is_known, _read_metas(start)), None) if b"<" in start else None


def _is_known(label: str) -> bool:
    return find_encoding(label) is not None


def _read_metas(start: bytes) -> Iterator[str]:
    """Yield the labels in the meta elements, in order."""
    position = start.find(b"<")
    while position >= 0:
        if start.startswith(b"<!--", position):
            end = start.find(b"-->", position + 2)  # <!--> is a whole comment
            position = len(start) if end < 0 else end + 3
        elif META.match(start, position):
            attributes, position = _read_attributes(start, position + 5)
            label = _label_of(attributes)
            if label:
                yield label
        elif raw := RAW_TEXT.match(start, position):
            position = _skip_raw_text(start, position, raw[1].lower())
        elif TAG.match(start, position):
            name_end = END_OF_NAME.search(start, position)
            _, position = _read_attributes(start, len(start) if name_end is None else name_end.start())
        elif start[position + 1 : position + 2] in (b"!", b"/", b"?"):
            end = start.find(b">", position)
            position = len(start) if end < 0 else end + 1
        else:
            position += 1
        position = start.find(b"<", position)


def _skip_raw_text(start: bytes, position: int, name: bytes) -> int:
    """Return the position behind the end tag."""
    end = re.compile(rb"</" + name + rb"(?=[\s/>])", re.IGNORECASE).search(start, position)
    return len(start) if end is None else end.end()


def _read_attributes(start: bytes, position: int) -> tuple[dict[str, str], int]:
    """Return the attributes of a tag, and the position of its end. The first of two with one name counts."""
    attributes: dict[str, str] = {}
    while found := ATTRIBUTE.match(start, position):
        value = next((each for each in found.groups()[1:] if each is not None), b"")
        attributes.setdefault(found[1].decode("latin-1").lower(), value.decode("latin-1"))
        position = found.end()
    return attributes, position


def _label_of(attributes: dict[str, str]) -> str | None:
    if "charset" in attributes:
        return attributes["charset"]
    if "http-equiv" not in attributes:
        return None
    found = HEADER.search(attributes.get("content", ""))
    return None if found is None else next(filter(None, found.groups()), None)

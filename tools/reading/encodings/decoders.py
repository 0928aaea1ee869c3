"""Decode bytes by the name of their encoding in the standard.

Python's codecs serve as far as they agree with the standard's tables. Where they don't, the differences are here.
"""

import codecs
import re
from collections.abc import Callable
from functools import cache

SINGLE_BYTE = {  # encoding → Python's codec
    "ibm866": "cp866",
    **{f"iso-8859-{part}": f"iso8859-{part}" for part in (2, 3, 4, 5, 6, 7, 8, 10, 13, 14, 15, 16)},
    "iso-8859-8-i": "iso8859-8",
    "koi8-r": "koi8-r",
    "koi8-u": "koi8-u",
    "macintosh": "mac-roman",
    "windows-874": "cp874",
    **{f"windows-{page}": f"cp{page}" for page in range(1250, 1259)},
    "x-mac-cyrillic": "mac-cyrillic",
}
DIFFERENCES = {  # from Python's tables
    "koi8-u": {0xAE: "ў", 0xBE: "Ў"},
    "windows-1255": {0xCA: "\u05ba"},
}
UNKNOWN = "\ufffd"
PYTHON_CODECS = ("utf-8", "utf-16-le", "utf-16-be", "cp932", "cp949", "cp950", "big5hkscs", "gb18030", "euc_jp")
EUC_JP = {"〜": "～", "‖": "∥", "−": "－", "¢": "￠", "£": "￡", "¬": "￢"}
BIG5 = {
    "•": "‧", "､": "﹑", "‾": "¯", "∼": "～", "♁": "⊕", "☉": "⊙", "／": "∕", "＼": "﹨", "¥": "￥", "¢": "￠",
    "£": "￡",
}  # fmt: skip
# Private characters of Python's gb18030, which is older than Unicode's places for them
GB18030 = {
    "\ue5e5": "\u3000", "\ue78d": "︐", "\ue78e": "︒", "\ue78f": "︑", "\ue790": "︓", "\ue791": "︔", "\ue792": "︕",
    "\ue793": "︖", "\ue794": "︗", "\ue795": "︘", "\ue796": "︙", "\ue7c7": "ḿ", "\ue81e": "龴", "\ue826": "龵",
    "\ue82b": "龶", "\ue82c": "龷", "\ue832": "龸", "\ue843": "龹", "\ue854": "龺", "\ue864": "龻",
}  # fmt: skip
USER_DEFINED = "".join(chr(value if value < 0x80 else 0xF700 + value) for value in range(256))
ESCAPES = re.compile(rb"\x1b(\([BIJ]|\$[@B])")  # of ISO-2022-JP
NOT_ROMAN = {"\\": "¥", "~": "‾"}

Decode = Callable[[bytes], str]


def decode_as(body: bytes, name: str) -> str:
    """Return the text of a body in an encoding; what does not fit becomes U+FFFD."""
    return DECODERS[name](body)


def load_codecs() -> None:
    """Load all of Python's codecs that decoding needs: a confined worker can load nothing later."""
    for name in (*PYTHON_CODECS, "ascii", "latin-1"):
        codecs.lookup(name)
    for name in SINGLE_BYTE:
        _table(name)


def _decode_single(name: str) -> Decode:
    return lambda body: body.decode("latin-1").translate(_table(name))


@cache
def _table(name: str) -> str:
    """Return the characters of the 256 bytes. Bytes of C1 without a meaning stand for that control."""
    return "".join(_character(value, name) for value in range(256))


def _character(value: int, name: str) -> str:
    different = DIFFERENCES.get(name, {}).get(value)
    if different is not None:
        return different
    try:
        return bytes((value,)).decode(SINGLE_BYTE[name])
    except UnicodeDecodeError:
        return chr(value) if value < 0xA0 else UNKNOWN


def _decode_by(codec: str, handler: str = "replace") -> Decode:
    return lambda body: body.decode(codec, handler)


def _decode_and_change(codec: str, handler: str, changes: dict[str, str]) -> Decode:
    """Return a decoder by a codec of Python whose table differs in some characters."""
    pattern = re.compile(f"[{re.escape(''.join(changes))}]")
    return lambda body: pattern.sub(lambda found: changes[found[0]], body.decode(codec, handler))


def _decode_iso_2022_jp(body: bytes) -> str:
    parts = ESCAPES.split(body)
    text = parts[0].decode("ascii", "replace")
    for mode, part in zip(parts[1::2], parts[2::2], strict=True):
        text += _decode_iso_2022_part(mode, part)
    return text


def _decode_iso_2022_part(mode: bytes, part: bytes) -> str:
    match mode:
        case b"(B":
            return part.decode("ascii", "replace")
        case b"(J":
            return "".join(NOT_ROMAN.get(letter, letter) for letter in part.decode("ascii", "replace"))
        case b"(I":
            return bytes(value | 0x80 for value in part).decode("cp932", "replace")
        case _:
            lines = part.split(b"\n")  # a line end ends the mode in practice, with or without an escape
            return "\n".join(_jis_to_shift_jis(line).decode("cp932", "replace") for line in lines)


def _jis_to_shift_jis(pairs: bytes) -> bytes:
    """Return JIS X 0208 in 7 bits as Shift_JIS; a last single byte and bytes out of range become U+FFFD."""
    shifted = bytearray()
    for lead, trail in zip(pairs[::2], pairs[1::2], strict=False):
        if not (0x21 <= lead <= 0x7E and 0x21 <= trail <= 0x7E):
            shifted += b"\x85\x40"  # has no character
            continue
        row, cell = lead - 0x21, trail - 0x21 + 94 * ((lead - 0x21) % 2)
        shifted.append(row // 2 + (0x81 if row < 62 else 0xC1))
        shifted.append(cell + (0x40 if cell < 0x3F else 0x41))
    return bytes(shifted)


def _decode_user_defined(body: bytes) -> str:
    return body.decode("latin-1").translate(USER_DEFINED)


def _refuse(body: bytes) -> str:
    return UNKNOWN if body else ""


def _try_jis(error: UnicodeError) -> tuple[str, int]:
    """Return a character of EUC-JP that only Shift_JIS has in Python."""
    assert isinstance(error, UnicodeDecodeError)
    pair = bytes(value & 0x7F for value in error.object[error.start : error.start + 2] if value >= 0xA1)
    text = _jis_to_shift_jis(pair).decode("cp932", "replace") if len(pair) == 2 else UNKNOWN
    return (text, error.start + 2) if text != UNKNOWN else (UNKNOWN, error.end)


def _try_cp950(error: UnicodeError) -> tuple[str, int]:
    """Return a character of Big5 that Python's HKSCS lacks."""
    assert isinstance(error, UnicodeDecodeError)
    pair = error.object[error.start : error.start + 2]
    text = pair.decode("cp950", "replace")
    return (text, error.start + 2) if len(text) == 1 and text != UNKNOWN else (UNKNOWN, error.end)


def _try_euro(error: UnicodeError) -> tuple[str, int]:
    assert isinstance(error, UnicodeDecodeError)
    return "€" if error.object[error.start] == 0x80 else UNKNOWN, error.end


codecs.register_error("toolgate-euc-jp", _try_jis)
codecs.register_error("toolgate-big5", _try_cp950)
codecs.register_error("toolgate-gbk", _try_euro)

DECODERS: dict[str, Decode] = {
    "utf-8": _decode_by("utf-8"),
    "utf-16le": _decode_by("utf-16-le"),
    "utf-16be": _decode_by("utf-16-be"),
    "shift_jis": _decode_by("cp932"),
    "euc-kr": _decode_by("cp949"),
    "gbk": _decode_and_change("gb18030", "toolgate-gbk", GB18030),
    "gb18030": _decode_and_change("gb18030", "toolgate-gbk", GB18030),
    "big5": _decode_and_change("big5hkscs", "toolgate-big5", BIG5),
    "euc-jp": _decode_and_change("euc_jp", "toolgate-euc-jp", EUC_JP),
    "iso-2022-jp": _decode_iso_2022_jp,
    "x-user-defined": _decode_user_defined,
    "replacement": _refuse,
    **{name: _decode_single(name) for name in SINGLE_BYTE},
}

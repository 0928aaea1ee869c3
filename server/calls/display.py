"""Format arguments and a command's output for a person: no character is invisible or turns text around.

Source: ECMA-48 sections 5.4 and 5.6; xterm's "Control Sequences" for the strings that BEL ends.
"""

import codecs
import json
import re
from collections.abc import Mapping
from typing import Any

from toolgate.server.base.text import escape_invisible
from toolgate.tools.api.text.cleaning import clean_text

MAX_SHOWN = 4_000  # characters of one argument: about two screens
MAX_ALL = 12_000  # of all arguments
MAX_COMMAND = 32_000  # of a shell command: more than a person reads
MAX_NAME = 100  # of an argument's name
NAME = re.compile(r"[A-Za-z0-9_.-]{1,100}")  # needs no quotes
BLANKS = re.compile(" {9,}")
MAX_HELD = 4 * 1024  # characters of an unfinished sequence: more are treated as text
SEQUENCE = re.compile(
    r"\x1b\[[0-?]*[ -/]*[@-~]"  # control sequences: colours, the cursor
    r"|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)"  # titles, links
    r"|\x1b[PX^_][^\x1b]*\x1b\\"  # other strings
    r"|\x1b[ -/]*[0-OQ-WYZ\\`-~]"  # the rest, of two characters and more
)
UNFINISHED = re.compile(r"(?:\r|\x1b(?:\[[0-?]*[ -/]*|\][^\x07\x1b]*\x1b?|[PX^_][^\x1b]*\x1b?|[ -/]*)?)\Z")


def format_arguments(given: Mapping[str, Any]) -> str:
    """Format one argument a line, in JSON. A long one loses its middle, with the count outside the quotes."""
    lines: list[str] = []
    left = MAX_ALL
    for name, value in given.items():
        if left <= 0:
            lines.append(f"… and {len(given) - len(lines)} more arguments that are NOT SHOWN")
            break
        named = name if NAME.fullmatch(name) else _shorten(name, MAX_NAME)
        lines.append(f"{named}: {_shorten(value, min(MAX_SHOWN, left))}")
        left -= len(lines[-1])
    return "\n".join(lines)


def format_command(text: str) -> str:
    """Return a shell command with its lines and blanks. A very long one loses its middle, and says so."""
    if len(text) > MAX_COMMAND:
        half = MAX_COMMAND // 2
        left_out = f"\n… {len(text) - 2 * half:,} characters are NOT SHOWN here …\n"
        return f"{format_command(text[:half])}{left_out}{format_command(text[-half:])}"
    return "\n".join(escape_invisible(line.replace("\t", "    ")) for line in text.split("\n"))


def _shorten(value: Any, most: int) -> str:
    is_text = isinstance(value, str)
    text = value if is_text else _json(value)
    if len(text) <= most:
        return _quote(text, is_text)
    half = most // 2
    cut = f"… {len(text) - 2 * half:,} characters are NOT SHOWN here …"
    return f"{_quote(text[:half], is_text)}\n  {cut}\n  {_quote(text[-half:], is_text)}"


def _quote(text: str, is_text: bool) -> str:
    """Return the text in quotes. Runs of blanks that would push the rest out of sight become a count."""
    plain = escape_invisible(_json(text) if is_text else text)
    return BLANKS.sub(lambda found: f'" … {len(found[0]):,} spaces … "', plain)


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)  # the standard library's: it takes lone surrogates


class AnsiStripper:
    """Convert output that comes in pieces to plain text. A piece may end within a character or a sequence."""

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._rest = ""

    def feed(self, data: bytes, *, final: bool = False) -> str:
        text = SEQUENCE.sub("", self._rest + self._decoder.decode(data, final))
        self._rest = ""
        unfinished = None if final else UNFINISHED.search(text, max(0, len(text) - MAX_HELD))
        if unfinished is not None:
            text, self._rest = text[: unfinished.start()], text[unfinished.start() :]
        return clean_text(text)


def strip_ansi(data: bytes) -> str:
    """Return plain text of a whole output."""
    return AnsiStripper().feed(data, final=True)

"""What a command printed for a terminal, as plain text: no escape sequence, nothing that hides or turns text around.
Knows bytes; knows no commands.

Source: ECMA-48 sections 5.4 and 5.6; xterm's "Control Sequences" for the strings that BEL ends.
"""

import codecs
import re

from toolgate.tools.api.text import clean_text

MAX_HELD = 4 * 1024  # characters of a sequence that does not end: beyond that it is text
SEQUENCE = re.compile(
    r"\x1b\[[0-?]*[ -/]*[@-~]"  # control sequences: colours, the cursor
    r"|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)"  # titles, links
    r"|\x1b[PX^_][^\x1b]*\x1b\\"  # other strings
    r"|\x1b[ -/]*[0-OQ-WYZ\\`-~]"  # the rest, of two characters and more
)
UNFINISHED = re.compile(r"(?:\r|\x1b(?:\[[0-?]*[ -/]*|\][^\x07\x1b]*\x1b?|[PX^_][^\x1b]*\x1b?|[ -/]*)?)\Z")


class AnsiStripper:
    """Output piece by piece: neither a character nor a sequence need be whole in one."""

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
    """All of it at once."""
    return AnsiStripper().feed(data, final=True)

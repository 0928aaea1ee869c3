"""Colour words on a terminal, and wrap text to its width (no-color.org, force-color.org)."""

import os
import textwrap
from collections.abc import Mapping
from typing import TextIO

BOLD, DIM, GREEN, YELLOW, CYAN = "1", "2", "32", "33", "36"  # SGR codes
TITLE, FINE, BAD = "1;36", "1;32", "1;31"
NARROWEST, WIDEST = 40, 120  # columns of wrapped text


class Style:
    """`is_coloured`: paint. `width`: columns of wrapped text, or None for a stream that is no terminal."""

    def __init__(self, *, is_coloured: bool, width: int | None = None) -> None:
        self.is_coloured = is_coloured
        self.width = width

    def paint(self, code: str, text: str) -> str:
        return f"\033[{code}m{text}\033[0m" if self.is_coloured and text else text

    def wrap(self, text: str, indent: int) -> str:
        """Return the text in lines that fit beside and below an indent of so many columns."""
        if self.width is None:
            return text
        room = max(NARROWEST - indent, self.width - indent)
        lines = textwrap.wrap(text, room, break_long_words=False, break_on_hyphens=False)
        return f"\n{' ' * indent}".join(lines)


PLAIN = Style(is_coloured=False)


def choose_style(stream: TextIO, environment: Mapping[str, str]) -> Style:
    """Return the style of a stream. NO_COLOR beats FORCE_COLOR, and that the kind of the stream."""
    is_shown = is_terminal(stream)
    width = None
    if is_shown:
        try:
            width = min(WIDEST, os.get_terminal_size(stream.fileno()).columns or 80)
        except OSError:
            width = 80
    if environment.get("NO_COLOR"):
        is_coloured = False
    elif environment.get("FORCE_COLOR"):
        is_coloured = environment["FORCE_COLOR"] != "0"
    else:
        is_coloured = is_shown and environment.get("TERM", "dumb") != "dumb"
    return Style(is_coloured=is_coloured, width=width)


def is_terminal(stream: TextIO | None) -> bool:
    try:
        return stream is not None and stream.isatty()
    except ValueError:  # it is closed
        return False

"""Format arguments so that a person sees all of them: no character is invisible or turns the line around."""

import json
import re
from collections.abc import Mapping
from typing import Any

from toolgate.server.text import escape_invisible

MAX_SHOWN = 4_000  # characters of one argument: a screen or two
MAX_ALL = 12_000  # of all of them
MAX_NAME = 100  # of the name of one
NAME = re.compile(r"[A-Za-z0-9_.-]{1,100}")  # that needs no quotes
BLANKS = re.compile(" {9,}")


def format_arguments(given: Mapping[str, Any]) -> str:
    """A line for each argument, in JSON. Of a long one the middle is left out, and counted outside of the quotes."""
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


def _shorten(value: Any, most: int) -> str:
    is_text = isinstance(value, str)
    text = value if is_text else _json(value)
    if len(text) <= most:
        return _quote(text, is_text)
    half = most // 2
    cut = f"… {len(text) - 2 * half:,} characters are NOT SHOWN here …"
    return f"{_quote(text[:half], is_text)}\n  {cut}\n  {_quote(text[-half:], is_text)}"


def _quote(text: str, is_text: bool) -> str:
    """Visible, in quotes, with the blanks counted that would push the rest out of sight."""
    plain = escape_invisible(_json(text) if is_text else text)
    return BLANKS.sub(lambda found: f'" … {len(found[0]):,} spaces … "', plain)


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)  # of the standard library: it takes lone surrogates, too

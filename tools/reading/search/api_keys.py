"""Read the API keys of search engines from a file or the environment: a command line is visible to every user."""

from collections.abc import Mapping
from pathlib import Path

from toolgate.tools.api.regular_file import read_regular_text
from toolgate.tools.reading.search.engines import KEYED, key_variable

MAX_KEY = 500  # characters
MAX_FILE = 64 * 1024  # bytes; it holds a few lines


def read_api_keys(path: Path | None, environment: Mapping[str, str]) -> dict[str, str]:
    """Return engine → key. The environment's `TOOLGATE_…_API_KEY` beats the file's lines `engine = key`. Raises
    ValueError, whose text never contains a key."""
    keys = _lines(path) if path is not None else {}
    for name in KEYED:
        if key := environment.get(f"TOOLGATE_{key_variable(name)}", "").strip():
            keys[name] = _check_key(name, key)
    return keys


def _lines(path: Path) -> dict[str, str]:
    try:
        text = read_regular_text(path, MAX_FILE)
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not UTF-8"
        raise ValueError(f"{path} can't be read: {reason}") from None
    keys: dict[str, str] = {}
    for number, line in enumerate(text.splitlines(), start=1):
        name, equals, value = (part.strip() for part in line.partition("="))
        if not name or name.startswith("#"):
            continue
        if not equals or name.lower() not in KEYED:
            engines = ", ".join(KEYED)
            raise ValueError(f"line {number} of {path} is not `ENGINE = KEY` with one of the engines {engines}")
        keys[name.lower()] = _check_key(name.lower(), value.strip("\"'"))
    return keys


def _check_key(name: str, key: str) -> str:
    """Return the key if it can stand in a header. Raises ValueError."""
    if not key or len(key) > MAX_KEY or not key.isascii() or not key.isprintable():
        raise ValueError(f"the key for {name} must be 1 to {MAX_KEY} printable ASCII characters")
    return key

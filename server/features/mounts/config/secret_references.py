"""Name secrets as `${secret:NAME}` in the configuration of a mount."""

import re
from collections.abc import Iterable, Mapping
from typing import Any

from toolgate.server.features.mounts.config.faults import MountValueError

NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,63}")
NAME_RULE = "a name is up to 64 letters, digits, _ . and -, and begins with none of the last two"
PREFIX = "secret:"
REFERENCE = re.compile(r"\$\{secret:([A-Za-z0-9_.-]*)\}")


def check_reference(content: str) -> None:
    """Take what stands in `${…}`. Raises MountValueError unless it names a secret rightly."""
    if not NAME.fullmatch(content.removeprefix(PREFIX)):
        raise MountValueError(f"${{{content}}} names no secret: {NAME_RULE}", "CONFIG_PLACEHOLDER")


def check_url(url: str) -> None:
    """Raises MountValueError for a URL whose server a secret would choose."""
    if REFERENCE.search(re.split(r"[/?#]", url.partition("://")[2])[0]):
        raise MountValueError(
            "a secret may stand in its path and query alone: who set it would choose the server", "CONFIG_PLACEHOLDER"
        )


def refuse_references(text: str) -> None:
    """Raises MountValueError for a text that names a secret where none can stand."""
    if REFERENCE.search(text):
        raise MountValueError("no secret may stand there: write the value", "CONFIG_PLACEHOLDER")


def find_names(texts: Iterable[str]) -> frozenset[str]:
    """Return the names of the secrets in these texts."""
    return frozenset(name for text in texts for name in REFERENCE.findall(text))


def list_texts(rows: Mapping[str, Any]) -> list[str]:
    """Return the texts of a mount's table in which secrets may be named."""
    tables = [rows.get(key) for key in ("env", "headers")]
    named = [value for table in tables if isinstance(table, Mapping) for value in table.values()]
    own = () if rows.get("auth") in (None, "oauth") else (rows.get("client_secret"),)
    return [text for text in (*named, rows.get("url"), *own) if isinstance(text, str)]

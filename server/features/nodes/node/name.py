"""Choose a node's name at its first start, and keep it in its state folder."""

import os
import re
import socket
from pathlib import Path

from toolgate.tools.api.regular_file import read_regular

NODE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}")
NAME_FILE = "node.name"
FORM = "must be 1 to 63 letters, digits, dots, dashes or underscores, and begin with a letter or digit"
FALLBACK = "node"
MAX_FILE = 4_096  # bytes


def check_node_name(word: str) -> str:
    """Return a node's name. Raises ValueError."""
    if not NODE_NAME.fullmatch(word):
        raise ValueError(FORM)
    return word


def find_or_choose_name(state: Path, chosen: str | None) -> str:
    """Return the node's name: `chosen` or the host name at the first start, the same ever after. No other process may
    use `state` as a node's.

    Raises ValueError where the kept name is another than `chosen`, or no name; and OSError.
    """
    try:
        kept = read_regular(state / NAME_FILE, MAX_FILE).decode(errors="replace").rstrip("\n")
    except FileNotFoundError:
        return _keep_name(state, chosen or _name_host())
    if not NODE_NAME.fullmatch(kept):
        raise ValueError(f"{state / NAME_FILE} holds no name: it {FORM}")
    if chosen not in (None, kept):
        raise ValueError(
            f"this node is called {kept}, and servers know where people's files are by it: leave --name out"
        )
    return kept


def _name_host() -> str:
    name = re.sub(r"[^A-Za-z0-9._-]", "-", socket.gethostname())[:63].lstrip("._-")
    return name or FALLBACK


def _keep_name(state: Path, name: str) -> str:
    draft = state / f"{NAME_FILE}.draft"
    draft.unlink(missing_ok=True)
    with open(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600), "w") as file:
        file.write(f"{name}\n")
        file.flush()
        os.fsync(file.fileno())
    draft.rename(state / NAME_FILE)
    return name

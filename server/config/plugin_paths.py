"""Parse the values of `--plugins`: folders, files, and `builtin:NAME` for a plugin that comes with the server."""

import re
from pathlib import Path

from toolgate.server.base.text import suggest
from toolgate.server.config.types import parse_path

BUILTIN = "builtin:"
SHIPPED = Path(__file__).parents[2] / "plugins"  # beside server/, in the clone as in the wheel


def parse_plugin_path(word: str) -> Path:
    """Return the path of a plugin folder or file. Raises ValueError."""
    if not word.startswith(BUILTIN):
        return parse_path(word)
    shipped = list_shipped()
    name = word.removeprefix(BUILTIN)
    if name not in shipped:
        raise ValueError(f"there is no plugin {word!r}{suggest(name, shipped)}; there are {', '.join(shipped)}")
    return shipped[name]


def format_plugin_path(path: Path) -> str:
    """Return the word that `parse_plugin_path` parses to this path: a shipped plugin by its name, which stays the same
    when Python or the server is upgraded."""
    names = {file: name for name, file in list_shipped().items()} if path.is_relative_to(SHIPPED) else {}
    return f"{BUILTIN}{names[path]}" if path in names else str(path)


def split_plugin_paths(word: str) -> list[str]:
    """Return the items of an environment list, which ":" separates, as in PATH."""
    return re.findall(rf"(?:^|:)({BUILTIN}[^:]*|[^:]*)(?=:|$)", word)


def list_shipped() -> dict[str, Path]:
    """Return the files of the plugins that come with the server, by name: a `.py`, or a package's `__init__.py`."""
    files = {path.stem: path for path in SHIPPED.glob("*.py") if not path.name.startswith("_")}
    packages = {path.parent.name: path for path in SHIPPED.glob("*/__init__.py")}
    return dict(sorted({**files, **packages}.items()))

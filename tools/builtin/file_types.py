"""Turn a file's bytes into the contents of a resource: text or a blob, with its media type."""

from functools import cache
from posixpath import splitext
from typing import TYPE_CHECKING

from toolgate.tools.api.content import Contents

if TYPE_CHECKING:
    from mimetypes import MimeTypes

FOLDER = "inode/directory"  # shared-mime-info specification, section 2.2; MCP server/resources, "file://"

BINARY = ("audio/", "video/", "font/")  # binary, whatever the file's name says
COMPRESSED = {"gzip": "application/gzip", "bzip2": "application/x-bzip2", "xz": "application/x-xz"}
EXTRA_TYPES = {  # to Python
    ".md": "text/markdown",  # RFC 7763
    ".yaml": "application/yaml",  # RFC 9512
    ".yml": "application/yaml",
    ".toml": "application/toml",
}


def to_contents(uri: str, name: str, data: bytes) -> Contents:
    """Return the contents of the file `name`: text if it is UTF-8 without NUL, else a blob."""
    kind = mime_type(name)
    try:
        text = data.decode() if b"\0" not in data else None
    except UnicodeDecodeError:
        text = None
    if text is None:
        return Contents(uri, kind or "application/octet-stream", blob=data)
    return Contents(uri, "text/plain" if kind is None or kind.startswith(BINARY) else kind, text)


def mime_type(name: str) -> str | None:
    """Return the media type that a file's name suggests."""
    known = EXTRA_TYPES.get(splitext(name)[1])
    if known is not None:  # start-up: each skill has a SKILL.md, and Python's table takes 3 ms to load
        return known
    kind, packing = _types().guess_type(name.rpartition("/")[2].replace(":", ""), strict=False)  # it is no URL
    return kind if packing is None else COMPRESSED.get(packing, "application/octet-stream")


@cache
def _types() -> "MimeTypes":
    """Return Python's own table of types, without the machine's."""
    from mimetypes import MimeTypes  # start-up, as above

    types = MimeTypes()
    for ending, kind in EXTRA_TYPES.items():
        types.add_type(kind, ending)
    return types

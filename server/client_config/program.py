"""Find the words with which a client starts this program, also if it runs from the cache of uvx or `pipx run`."""

import re
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path
from urllib.parse import unquote, urlsplit

UV_CACHE = ("archive-v", "environments-v")  # folders of its cache, with the version of their format
PIPX_CACHE = ("pipx", ".cache")  # ~/.cache/pipx, or .cache in the folder that PIPX_HOME names; in it, folders of hashes


def find_program(environment: Mapping[str, str] | None = None) -> list[str]:
    """Return the command line of the running program, with an absolute path.

    uvx and `pipx run` install into a cache that they empty, so a client has to start the program through them.
    `environment` has PATH, and UV if uv is its parent.
    """
    environment = environment or {}
    prefix = Path(sys.prefix)
    if any(part.startswith(UV_CACHE) for part in prefix.parts) and (runner := _find_uv(environment)):
        return [*runner, *_name_source("--from"), "toolgate"]
    in_pipx = prefix.parent.name in PIPX_CACHE and re.fullmatch("[0-9a-f]{15}", prefix.name)
    pipx = shutil.which("pipx", path=environment.get("PATH")) if in_pipx else None
    if pipx:
        return [pipx, "run", *_name_source("--spec"), "toolgate"]
    beside = Path(sys.executable).with_name("toolgate")
    found = str(beside) if beside.exists() else shutil.which("toolgate")
    return [found or str(Path(sys.argv[0]).absolute())]


def _find_uv(environment: Mapping[str, str]) -> list[str]:
    """Return the words that run a tool: uvx, or uv, which uv's children find in UV."""
    if found := shutil.which("uvx", path=environment.get("PATH")):
        return [found]
    uv = environment.get("UV") or shutil.which("uv", path=environment.get("PATH"))
    return [uv, "tool", "run"] if uv else []


def _name_source(flag: str) -> list[str]:
    """Return the flag with the file or URL that the program was installed from, or nothing if from an index
    (PEP 610)."""
    from importlib import metadata

    from toolgate.tools.api.json_text import JsonError, decode_json

    try:
        recorded = metadata.distribution("toolgate").read_text("direct_url.json")
        url = str(decode_json(recorded or "{}").get("url", ""))
    except (metadata.PackageNotFoundError, JsonError, AttributeError):
        return []
    parts = urlsplit(url)
    if parts.scheme == "file":
        return [flag, unquote(parts.path)]
    return [flag, url] if url else []

"""Plugin files into parts: each file or package in a plugin folder is a module whose parts are on offer.

Knows nothing of the registry's use. A plugin that fails to load is named in the log and left out.
"""

import hashlib
import importlib.util
import logging
import stat
import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from types import ModuleType

from toolgate.tools.errors import Collision
from toolgate.tools.registry import Part, Registry

log = logging.getLogger("toolgate.plugins")

MAX_FILES = 1_000  # of one folder: a folder with more is not a plugin folder


def load(registry: Registry, folders: Sequence[Path]) -> Registry:
    """The registry with the plugins of `folders` behind it, sorted by name. What can't be loaded is logged."""
    held = registry
    parts: list[Part] = []
    for file in files(folders):
        found = _parts_of(file)
        try:
            held = held.with_parts(found)  # a file is taken whole or not at all
            parts += found
        except Collision as collision:
            log.error("plugin %s is left out: %s", file, collision)
    return registry.with_parts(sorted(parts, key=lambda part: part.key))


def files(folders: Iterable[Path]) -> Iterator[Path]:
    """The plugin files: every `.py` and every package below, in order, each once; names that begin with `.` or `_` are
    not. Links are followed, but nowhere twice."""
    seen: set[tuple[int, int]] = set()
    for folder in folders:
        if not folder.is_dir():
            log.error("there is no plugin folder %s", folder)
            continue
        for count, file in enumerate(_below(folder, seen)):
            if count == MAX_FILES:
                log.error("more than %d files in plugin folder %s: the rest is left out", MAX_FILES, folder)
                break
            yield file


def _below(folder: Path, seen: set[tuple[int, int]]) -> Iterator[Path]:
    try:
        entries = sorted(folder.iterdir())
    except OSError as error:
        log.error("plugin folder %s can't be read: %s", folder, error)
        return
    for entry in entries:
        if entry.name.startswith((".", "_")):
            continue
        try:
            kind = entry.stat()
        except OSError:
            continue  # a broken link
        if (kind.st_dev, kind.st_ino) in seen:
            continue
        seen.add((kind.st_dev, kind.st_ino))
        if stat.S_ISDIR(kind.st_mode):
            package = entry / "__init__.py"
            yield from [package] if package.is_file() else _below(entry, seen)
        elif stat.S_ISREG(kind.st_mode) and entry.suffix == ".py":
            yield entry


def _parts_of(file: Path) -> list[Part]:
    """The parts a module declares itself; what it imports from elsewhere is not its own."""
    try:
        module = _import(file)
        parts = [value for value in vars(module).values() if isinstance(value, Part)]
        own = [part for part in dict.fromkeys(parts) if part.function.call.__module__.startswith(module.__name__)]
        for part in own:
            part.verify()
    except BaseException:  # whatever a plugin raises, it takes nothing but itself down
        log.exception("plugin %s is left out: it failed to load", file)
        return []
    if not own:
        log.warning("plugin %s declares no tool, prompt or resource", file)
    return own


def _import(file: Path) -> ModuleType:
    is_package = file.name == "__init__.py"
    stem = file.parent.name if is_package else file.stem
    name = f"toolgate_plugin_{stem}_{hashlib.sha256(str(file).encode()).hexdigest()[:8]}"
    spec = importlib.util.spec_from_file_location(
        name, file, submodule_search_locations=[str(file.parent)] if is_package else None
    )
    if spec is None or spec.loader is None:
        raise ImportError(f"{file} is no Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module

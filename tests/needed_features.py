"""Leave out the test modules of features that were deleted, so that the core's suite runs without them.

A module needs a feature if it imports it, or a helper of tests that does. An import in a function is one that most of
its users do without.
"""

import ast
import re
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
FOLDER = "server/features"
FEATURES = ("clients", "events", "mounts", "nodes", "postgres", "remote_checks", "replicas", "telemetry")
PREFIXES = ("toolgate.server.features.", "tests.server.features.")
WORDS = {  # by feature: what needs it on a command line
    "clients": r"^(config|install|uninstall)\b",
    "events": r"^events\b",
    "mounts": r"^mount\b",
    "nodes": r"^node\b|--node\b",
    "postgres": r"--database\b",
    "remote_checks": r"^doctor --url\b",
    "replicas": r"--redis\b",
    "telemetry": r"^audit\b|--metrics-token\b",
}
PLACE = re.compile(r"\bserver[./]features[./](\w+)")  # of a feature, in a path or in the name of a module


@cache
def list_deleted() -> frozenset[str]:
    return frozenset(name for name in FEATURES if not (ROOT / FOLDER / name).is_dir())


def is_deleted(place: str) -> bool:
    """Return whether a path or a name of a module is of a feature that is not there."""
    found = PLACE.search(place)
    return found is not None and found[1] in list_deleted()


def needs_deleted(path: Path) -> bool:
    """Return whether a folder or a module of tests needs a feature that is not there."""
    deleted = list_deleted()
    if not deleted:
        return False
    parts = path.relative_to(ROOT).parts
    if parts[:3] == ("tests", "server", "features") and deleted.intersection(parts[3:4]):
        return True
    return path.suffix == ".py" and not deleted.isdisjoint(_find_needs(path, frozenset()))


def require(feature: str) -> None:
    """Skip the test if a feature is not there that few tests of its module need."""
    if feature in list_deleted():
        pytest.skip(f"it needs {feature}")


def require_all() -> None:
    """Skip the test if any feature is not there: it is about all of them, as a page of docs is."""
    for feature in FEATURES:
        require(feature)


def require_for(words: str) -> None:
    """Skip the test if a feature is not there that a command line needs."""
    for feature, pattern in WORDS.items():
        if re.search(pattern, words):
            require(feature)


def _find_needs(path: Path, above: frozenset[Path]) -> frozenset[str]:
    """Return the features that a module needs. `above` are the modules that led here."""
    found: frozenset[str] = frozenset()
    for name in _read_imports(path):
        feature = next((name.removeprefix(each).split(".")[0] for each in PREFIXES if name.startswith(each)), "")
        found |= {feature} & frozenset(FEATURES)
        helper = _find_helper(name)
        if helper is not None and helper != path and helper not in above:
            found |= _find_needs(helper, above | {path})
    return found


@cache
def _read_imports(path: Path) -> list[str]:
    """Return the full names that a module imports when it is imported."""
    names: list[str] = []
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module:
            names += [f"{node.module}.{alias.name}" for alias in node.names]
    return names


def _find_helper(name: str) -> Path | None:
    """Return the file of a module of tests, also where the name is of something in it."""
    parts = name.split(".")
    if parts[0] != "tests":
        return None
    files = (ROOT / Path(*parts[:length]).with_suffix(".py") for length in (len(parts), len(parts) - 1))
    return next((file for file in files if file.is_file()), None)

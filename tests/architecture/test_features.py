"""Check that the core knows features by their one list alone, and that no feature imports another."""

from pathlib import Path
from pkgutil import resolve_name

import pytest

from tests.architecture import rooms
from toolgate.server.config.feature_rows import FEATURES, ROOM, FeatureRow
from toolgate.server.config.options import OPTIONS

FOLDER = "server/features"
NAMES = sorted(path.name for path in (rooms.ROOT / FOLDER).iterdir() if (path / "__init__.py").exists())


def feature_of(path: Path) -> str:
    """Return the name of the feature that a file belongs to, or "" for the core."""
    parts = path.parts
    return parts[2] if str(path).startswith(f"{FOLDER}/") and len(parts) > 3 else ""


@pytest.mark.parametrize("feature", NAMES)
def test_nothing_outside_of_a_feature_imports_it(feature: str) -> None:
    reaching = [
        f"{path}:{line} imports {target}"
        for path in rooms.sources()
        if feature_of(path) != feature
        for line, target in rooms.imports(path)
        if feature_of(target) == feature
    ]
    assert reaching == []


@pytest.mark.parametrize("row", FEATURES, ids=lambda row: row.feature or row.commands or row.check)
def test_what_a_row_names_is_there(row: FeatureRow) -> None:
    names = filter(None, (row.feature, row.options, row.notes, row.commands, row.check, row.state, row.doctor))
    assert all(resolve_name(f"{ROOM}.{name}") for name in names)
    assert {option.key for option in OPTIONS} >= set(row.switches)

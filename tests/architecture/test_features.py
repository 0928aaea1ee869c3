"""Check that the core knows features by their one list alone, and that no feature imports another."""

from pathlib import Path

import pytest

from tests.architecture import rooms

FEATURES = "server/features"
NAMES = sorted(path.name for path in (rooms.ROOT / FEATURES).iterdir() if (path / "feature.py").exists())


def feature_of(path: Path) -> str:
    """Return the name of the feature that a file belongs to, or "" for the core."""
    parts = path.parts
    return parts[2] if str(path).startswith(f"{FEATURES}/") and len(parts) > 3 else ""


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

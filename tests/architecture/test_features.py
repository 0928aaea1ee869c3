"""Check that the core knows features by their one list alone, and that no feature imports another."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from pkgutil import resolve_name

import msgspec
import pytest

from tests import needed_features
from tests.architecture import rooms
from toolgate.server.config.feature_rows import FEATURES, ROOM, FeatureRow
from toolgate.server.config.options import OPTIONS

FOLDER = "server/features"
LIST = Path("server/config/feature_rows.py")
ANY = "|".join(needed_features.FEATURES)
PLACE = re.compile(rf"\bfeatures[./]({ANY})\b|^({ANY})[.\w]*:\w+$")  # also as a row has it
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


def find_places(path: Path) -> Iterator[str]:
    """Yield each string of a file that is the place of a feature's code. A docstring may name one."""
    texts = {id(node.value) for node in rooms.nodes(path) if isinstance(node, ast.Expr)}
    for node in rooms.nodes(path):
        match node:
            case ast.Constant(str(text)) if PLACE.search(text) and id(node) not in texts:
                yield f"{path}:{node.lineno} has {text!r}"


def test_the_core_has_the_places_of_features_in_their_list_alone() -> None:
    core = [path for path in rooms.sources() if not feature_of(path)]
    assert [place for path in core if path != LIST for place in find_places(path)] == []
    assert FEATURES == () or list(find_places(LIST)) != []


@pytest.mark.parametrize("row", FEATURES, ids=lambda row: row.feature or row.commands or row.check)
def test_what_a_row_names_is_there(row: FeatureRow) -> None:
    fields = msgspec.structs.asdict(row)
    places = [place for name, place in fields.items() if isinstance(place, str) and place and name != "table"]
    assert all(resolve_name(f"{ROOM}.{place}") for place in places)
    assert {option.key for option in OPTIONS} >= set(row.switches)

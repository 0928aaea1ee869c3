"""Check that a real server takes the path of a call in CONTRIBUTING.md, and that the path stays short."""

import pytest

from tests.architecture import walk
from tests.needed_features import require

MOST_ROOMS = {"stdio": 10, "http": 17}
MOST_FILES = {"stdio": 22, "http": 37}
MOST_CHANGES = {"stdio": 44, "http": 80}


@pytest.mark.parametrize("name", walk.PATHS)
def test_the_page_has_the_path_of_a_real_call(name: str) -> None:
    if name == "http":
        require("telemetry")  # its log is on the path
    steps = walk.trace(walk.PATHS[name])
    assert set(walk.read_path(name)) == set(walk.files(steps)), "run: make walk"
    assert len(walk.folders(steps)) <= MOST_ROOMS[name]
    assert len(walk.files(steps)) <= MOST_FILES[name]
    assert walk.count_changes(steps) <= MOST_CHANGES[name]

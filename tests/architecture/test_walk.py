"""Check that a real server takes the path of a call in CONTRIBUTING.md, and that the path stays short."""

import pytest

from tests.architecture import walk

MOST_ROOMS = {"stdio": 10, "http": 17}


@pytest.mark.parametrize("name", walk.PATHS)
def test_the_page_has_the_path_of_a_real_call(name: str) -> None:
    steps = walk.trace(walk.PATHS[name])
    assert set(walk.read_path(name)) == set(walk.files(steps)), "run: make walk"
    assert len(walk.folders(steps)) <= MOST_ROOMS[name]

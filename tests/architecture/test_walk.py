"""The path of a call, as CONTRIBUTING.md tells it, is the one a real server takes; and it stays short."""

import pytest

from tests.architecture import walk

MOST_ROOMS = {"stdio": 10, "http": 17}


@pytest.mark.parametrize("name", walk.PATHS)
def test_the_page_has_the_path_of_a_real_call(name: str) -> None:
    steps = walk.trace(walk.PATHS[name])
    assert set(walk.read_path(name)) == set(walk.files(steps)), "run: make walk"
    assert len(walk.folders(steps)) <= MOST_ROOMS[name]

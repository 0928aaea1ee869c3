"""The core's suite is green in a copy of the repository without any feature."""

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.needed_features import FEATURES, list_deleted
from tests.server.features.reduced_copy import copy_repository
from tests.servers.open_folder import open_folder

pytestmark = pytest.mark.skipif(bool(list_deleted()), reason="it deletes them itself")
ROOMS = ("tests/architecture", "tests/server", "tests/transports", "tests/tools")
BRIEF = "test_rooms or test_features or test_state_files"  # which name what features have
BRIEF_WITHIN, WITHIN = 300.0, 3 * 3600.0  # seconds, on a busy machine


@pytest.fixture(scope="module")
def python() -> Iterator[Path]:
    with open_folder() as folder:
        yield copy_repository(FEATURES, folder / "toolgate")


def run_suite(python: Path, *words: str, within: float) -> None:
    """Run tests of the copy, and fail with what they say."""
    root = python.parents[2]
    command = (python, "-m", "pytest", "--tb=short", *words)
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    done = subprocess.run(command, cwd=root, env=environment, capture_output=True, text=True, timeout=within)
    assert done.returncode == 0, done.stdout[-20_000:] + done.stderr[-2_000:]


def test_the_core_s_suite_is_collected_and_its_rooms_have_an_order(python: Path) -> None:
    run_suite(python, *ROOMS[:-1], "-k", BRIEF, within=BRIEF_WITHIN)


@pytest.mark.soak
def test_the_core_s_suite_is_green(python: Path) -> None:
    run_suite(python, *ROOMS, "-n", "2", "--dist", "loadfile", within=WITHIN)

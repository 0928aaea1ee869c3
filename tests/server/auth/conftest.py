"""Fixtures: a server that people sign in to. Passwords of tests cost next to nothing, where the server is in the tests'
own process: servers of their own hash as ever."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.server.auth.sign_in_server import House, house
from toolgate.server.auth.login import accounts


@pytest.fixture(autouse=True, scope="package")
def cheap() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(accounts, "COST", {"time_cost": 1, "memory_cost": 64, "parallelism": 1})
        yield


@pytest.fixture
def gate(tmp_path: Path) -> Iterator[House]:
    """With one account, ada."""
    with house(tmp_path) as made:
        made.add()
        yield made

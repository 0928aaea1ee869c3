"""Passwords of tests cost next to nothing, where the server is in the tests' own process: servers of their own hash as
ever."""

from collections.abc import Iterator

import pytest

from toolgate.server.auth import accounts


@pytest.fixture(autouse=True, scope="package")
def cheap() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(accounts, "COST", {"time_cost": 1, "memory_cost": 64, "parallelism": 1})
        yield

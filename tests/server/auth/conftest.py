"""Fixtures: a server with sign-in. Hashing passwords is cheap in the tests' own process; separate servers hash as
always."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.server.auth.sign_in_server import SignInServer, sign_in_server
from toolgate.server.auth.login import accounts


@pytest.fixture(autouse=True, scope="package")
def cheap() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(accounts, "COST", {"time_cost": 1, "memory_cost": 64, "parallelism": 1})
        yield


@pytest.fixture
def server(tmp_path: Path) -> Iterator[SignInServer]:
    """A server with one account, ada."""
    with sign_in_server(tmp_path) as made:
        made.add()
        yield made

"""Fixtures: a server with sign-in."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.server.auth.sign_in_server import SignInServer, sign_in_server


@pytest.fixture
def server(tmp_path: Path) -> Iterator[SignInServer]:
    """A server with one account, ada."""
    with sign_in_server(tmp_path) as made:
        made.add()
        yield made

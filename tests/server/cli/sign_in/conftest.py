"""Fixture: a server that lies."""

import threading
from collections.abc import Iterator

import pytest

from tests.servers.lying_oauth_server import LyingServer


@pytest.fixture
def lying() -> Iterator[LyingServer]:
    with LyingServer() as server:
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        yield server
        server.shutdown()

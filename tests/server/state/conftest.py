"""Run a test on both kinds of store."""

from collections.abc import Iterator

import pytest

from tests.needed_features import list_deleted
from tests.server.state import each_store as stores
from tests.servers.state_limits import set_postgres_limits


@pytest.fixture(params=["sqlite", *({"postgres"} - list_deleted())])
def each_store(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Have `open_store` of each_store.py open stores of one kind, then of the other."""
    is_file = request.param == "sqlite"
    if not is_file:
        set_postgres_limits(monkeypatch)
    stores.chosen.server = None if is_file else request.getfixturevalue("postgres")
    stores.chosen.urls.clear()
    yield
    stores.chosen.server = None

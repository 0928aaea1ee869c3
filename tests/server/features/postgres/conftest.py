"""Run a test on both kinds of store, as the tests of the state do."""

import pytest

from tests.server.state.conftest import each_store as each_store
from tests.servers.state_limits import set_postgres_limits


@pytest.fixture(autouse=True)
def patient_statements(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Give statements the time that a busy machine takes, but where a test is about the limits."""
    if "real_state_limits" not in request.fixturenames:
        set_postgres_limits(monkeypatch)

"""Give the state of this process more time than users have: a busy machine is no fault. Tests of the limits use the
fixture `real_state_limits`."""

import pytest

from tests.clients.raw_client import PATIENCE
from toolgate.server.base.limits import state_budget
from toolgate.server.state.sqlite import store

CALL, BUSY = state_budget.SECONDS, store.BUSY  # seconds, as users have them


def set_limits(call: float, busy: float) -> None:
    state_budget.SECONDS, store.BUSY = call, busy


def set_postgres_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Do the same for PostgreSQL, whose limits each connection of this process asks for."""
    from toolgate.server.features.postgres.database import driver  # start-up: few tests need SQLAlchemy

    for name in ("lock_timeout", "statement_timeout", "idle_in_transaction_session_timeout"):
        monkeypatch.setitem(driver.SETTINGS, name, f"{PATIENCE:g}s")

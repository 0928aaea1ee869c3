"""Give the state of this process more time than users have: a busy machine is no fault. Tests of the limits use the
fixture `real_state_limits`."""

from toolgate.server.base import state_budget
from toolgate.server.state.sqlite import store

CALL, BUSY = state_budget.SECONDS, store.BUSY  # seconds, as users have them


def set_limits(call: float, busy: float) -> None:
    state_budget.SECONDS, store.BUSY = call, busy

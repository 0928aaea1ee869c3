"""The seconds that one call may wait for the state, by a clock that the test sets."""

from toolgate.server.base.limits.state_budget import ORDINARY, REFILL, StateBudget


class Clock:
    def __init__(self) -> None:
        self.time = 100.0

    def __call__(self) -> float:
        return self.time


def wait(budget: StateBudget, clock: Clock, seconds: float) -> None:
    began = clock()
    clock.time += seconds
    budget.spend(began)


def test_waits_one_after_another_use_the_budget_up() -> None:
    clock = Clock()
    budget = StateBudget(3.0, clock)
    for left in (2.0, 1.0, 0.0, 0.0):
        wait(budget, clock, 1.0)
        assert budget.remaining() == left


def test_waits_at_the_same_time_count_once() -> None:
    clock = Clock()
    budget = StateBudget(3.0, clock)
    began = clock()
    clock.time += 1.0
    for _ in range(100):
        budget.spend(began)
    assert budget.remaining() == 2.0


def test_quick_waits_cost_nothing() -> None:
    clock = Clock()
    budget = StateBudget(3.0, clock)
    for _ in range(1_000):
        wait(budget, clock, ORDINARY / 2)
    assert budget.remaining() == 3.0


def test_the_budget_of_a_long_call_is_whole_again_after_a_while() -> None:
    clock = Clock()
    budget = StateBudget(3.0, clock)
    wait(budget, clock, 3.0)
    clock.time += REFILL
    assert budget.remaining() == 0.0
    clock.time += 0.1
    assert budget.remaining() == 3.0


def test_it_is_closed_after_the_last_message() -> None:
    budget = StateBudget(3.0)
    budget.enter()
    budget.enter()
    budget.leave()
    assert not budget.is_closed
    budget.leave()
    assert budget.is_closed

"""Busy groups are throttled: judged on fake groups, and applied to real ones."""

from collections.abc import Iterator
from typing import Any

import pytest

from toolgate.tools.workspace.sandbox import cgroups
from toolgate.tools.workspace.sandbox.cgroups import Cgroups
from toolgate.tools.workspace.sandbox.cgroups.group import EVERY, QUIET, CpuFairness

NAME = "abcdef0123456789"


class FakeGroup:
    """A fake group."""

    def __init__(self) -> None:
        self.used: float | None = 0.0
        self.told: list[bool] = []

    def cpu_seconds(self) -> float | None:
        return self.used

    def throttle(self, enabled: bool) -> bool:
        self.told.append(enabled)
        return True


class Clock:
    def __init__(self) -> None:
        self.now = 0.0
        self.manners = CpuFairness(lambda: self.now)

    def passes(self, *groups: Any, shares: tuple[float, ...]) -> None:
        """Advance the clock between two checks, in which each group used its share of a processor."""
        self.now += EVERY
        for group, share in zip(groups, shares, strict=True):
            group.used += share * EVERY
        self.manners.update(groups)


def test_a_busy_group_is_throttled_and_a_quiet_one_is_not() -> None:
    clock, busy, modest = Clock(), FakeGroup(), FakeGroup()
    for _ in range(10):
        clock.passes(busy, modest, shares=(1.9, 0.2))
    assert (busy.told, modest.told) == ([True], [])


def test_a_group_that_was_quiet_for_a_while_gets_its_weight_back() -> None:
    clock, group = Clock(), FakeGroup()
    clock.passes(group, shares=(0.0,))
    clock.passes(group, shares=(1.0,))
    for _ in range(QUIET - 1):
        clock.passes(group, shares=(0.0,))
    clock.passes(group, shares=(0.4,))  # neither busy nor quiet: the count starts again
    for _ in range(QUIET - 1):
        clock.passes(group, shares=(0.0,))
    assert group.told == [True]
    clock.passes(group, shares=(0.0,))
    assert group.told == [True, False]


def test_a_group_without_a_cpu_counter_is_skipped() -> None:
    clock, group = Clock(), FakeGroup()
    group.used = None
    for _ in range(3):
        clock.now += EVERY
        clock.manners.update([group])  # type: ignore[list-item]
    assert group.told == []


@pytest.fixture
def found() -> Iterator[Cgroups]:
    made = cgroups.find()
    assert isinstance(made, Cgroups), made
    yield made
    assert made.close()


def weights(group: cgroups.Group) -> list[int]:
    """Return the weights; 1,024 on v1 equal 100 on v2."""
    shares = [entrance.parent / "cpu.shares" for entrance in group.procs_files]
    plain = [entrance.parent / "cpu.weight" for entrance in group.procs_files]
    return [int(file.read_text()) * 100 // 1024 for file in shares if file.exists()] + [
        int(file.read_text()) for file in plain if file.exists()
    ]


def test_a_real_group_is_throttled_and_gets_its_weight_back(found: Cgroups) -> None:
    group = found.group(NAME, processes=10)
    assert weights(group) == [100], "no weight: it takes a cgroup with the cpu controller that can be written"
    assert group.throttle(True) and 9 <= weights(group)[0] <= 10
    assert group.throttle(False) and weights(group) == [100]
    assert group.throttle(True) and group.kill() and group.close()
    assert not group.throttle(False)

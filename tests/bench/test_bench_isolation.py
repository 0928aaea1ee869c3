"""The benchmarks of isolation, of neighbours and of nodes work. Only `make bench` measures."""

import os
from pathlib import Path

import pytest

from tests.bench import isolation, neighbours, node
from tests.bench.driver import Cores

pytestmark = [
    pytest.mark.soak,
    pytest.mark.skipif(os.geteuid() != 0, reason="only root has users of their own"),
    pytest.mark.programs("bwrap"),
]


def test_each_attack_is_measured_and_reported(tmp_path: Path) -> None:
    printed = neighbours.report(neighbours.measure(tmp_path, 1, 3, lambda _: None))
    for name in neighbours.ATTACKS:
        (line,) = (line for line in printed.splitlines() if line.startswith(name))
        assert line.endswith(("met", "MISSED"))


def test_the_cost_of_isolation_is_reported(tmp_path: Path) -> None:
    cores = Cores()
    try:
        cost = isolation.measure(tmp_path, cores, 1, 2, lambda _: None)
    finally:
        cores.free()
    assert cost.held > 0
    assert "ms to the bare bwrap" in isolation.report(cost)


def test_the_cost_of_a_node_is_reported(tmp_path: Path) -> None:
    printed = node.report(node.measure(tmp_path, 1, 4, lambda _: None))
    assert all(line.endswith(("met", "NOT MET")) for line in printed.splitlines()[-4:])

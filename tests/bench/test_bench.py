"""The benchmark works. Only `make bench` measures speed."""

from pathlib import Path

import pytest

from tests.bench.driver import Cores
from tests.bench.measure import Effort, measure
from tests.bench.report import TARGETS, report
from tests.bench.sides import FLOOR, OURS, PYTHON, TYPESCRIPT, prepared


@pytest.mark.soak  # the one over HTTP is measured and reported the same way
def test_the_benchmark_measures_all_sides_and_holds_them_against_the_targets(tmp_path: Path) -> None:
    told: list[str] = []
    cores = Cores()
    try:
        effort = Effort(rounds=1, starts=1, idle=0, calls=2, warm=0, burst=0, slices=1, commands=1)
        printed = report(measure(prepared(tmp_path, cores), effort, told.append))
    finally:
        cores.free()
    lines = printed.splitlines()
    for side in (OURS, PYTHON, TYPESCRIPT, FLOOR):  # the floor is what the others are compared with
        assert sum(line.startswith(side + " ") for line in lines) == (1 if side == FLOOR else 2)
    for target in TARGETS:
        (line,) = (line for line in lines if line.startswith(target.says))
        assert line.endswith(("met", "NOT MET"))
    assert told

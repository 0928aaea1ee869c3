"""The benchmark over HTTP works. Only `make bench` measures speed."""

from pathlib import Path

import pytest

from tests.bench.driver import Cores
from tests.bench.http import cases
from tests.bench.http.measure import WebEffort, measure
from tests.bench.http.report import TARGETS, report
from tests.bench.http.sides import DIALECTS, prepared
from tests.bench.sides import FLOOR


@pytest.mark.soak  # 50 s
def test_the_benchmark_over_http_measures_all_sides_and_holds_them_against_the_targets(tmp_path: Path) -> None:
    told: list[str] = []
    cores = Cores()
    try:
        effort = WebEffort(rounds=1, seconds=0, warm=0, held_rounds=1, held=8, settle=0, idle=0)
        printed = report(measure(prepared(tmp_path, cores), effort, told.append))
    finally:
        cores.free()
    lines = printed.splitlines()
    for side in DIALECTS:  # the floor is what the others are compared with
        assert sum(line.startswith(side + "  ") for line in lines) == (1 if side == FLOOR else 2), side
    for target in TARGETS:
        (line,) = (line for line in lines if line.startswith(target.says))
        assert line.endswith(("met", "NOT MET"))
    assert told


@pytest.mark.soak
def test_each_case_is_measured_beside_the_plain_call(tmp_path: Path) -> None:
    told: list[str] = []
    shared = Cores()
    try:
        effort = WebEffort(rounds=1, warm=0, slice=0, case_slices=1, held=8)
        lines = cases.report(cases.measure(prepared(tmp_path, shared), effort, told.append)).splitlines()
    finally:
        shared.free()
    for case in cases.CASES:
        assert any(line.startswith(case.name + " ") for line in lines), case
    assert all(any(line.startswith(target.says) for line in lines) for target in cases.TARGETS)
    assert told

"""The benchmark of mounts works. Only `make bench` measures speed."""

from pathlib import Path

import pytest

from tests.bench.driver import Cores
from tests.bench.measure import Figures
from tests.bench.mounts import connected
from tests.bench.mounts.measure import ADDED, BARE, CALLS, CPU, P50, MountEffort, measure, name_row
from tests.bench.mounts.report import TARGETS, report
from tests.bench.mounts.sides import ROUTES


def test_the_report_has_a_table_for_each_route_and_a_line_for_each_target() -> None:
    figures = Figures()
    for route in ROUTES:
        for side in (*route.sides, BARE):
            for metric in (P50, ADDED, CPU, CALLS):
                figures.add(name_row(route, side), metric, 100.0)
    printed = report(figures)
    for route in ROUTES:
        _, _, table = printed.partition(f"{route}\n")
        rows = table.partition("\n\n")[0].splitlines()[2:]
        assert [row.split("  ")[0] for row in rows] == [*route.sides, BARE]
    lines = printed.splitlines()
    met = {target.says: line for target in TARGETS for line in lines if line.startswith(target.says)}
    assert len(met) == len(TARGETS)
    assert met["a command, over HTTP: at most 500 µs added"].endswith(" met")
    assert met["a URL, over HTTP: at least 10 × the calls of ContextForge"].endswith("NOT MET")


@pytest.mark.soak  # it starts an authorization server, too
def test_a_connected_mount_is_measured_beside_an_open_one(tmp_path: Path) -> None:
    effort = MountEffort(rounds=1, slices=1, calls=2, warm=0.01, burst=0.01)
    printed = connected.report(connected.measure(tmp_path, Cores(), effort, lambda _: None))
    rows = [line.split("  ")[0] for line in printed.splitlines()]
    assert {connected.OPEN, connected.CONNECTED, *(target.says for target in connected.TARGETS)} <= {*rows}


@pytest.mark.soak  # it starts each gateway on each route
def test_each_gateway_is_measured_on_each_route(tmp_path: Path) -> None:
    cores = Cores()
    told: list[str] = []
    try:
        effort = MountEffort(rounds=1, slices=1, calls=2, warm=0.01, burst=0.01)
        figures = measure(tmp_path, cores, effort, told.append)
    finally:
        cores.free()
    for route in ROUTES:
        for side in route.sides:
            assert figures.has(name_row(route, side), CALLS), f"{route}: {side}"
    assert told

"""The official conformance suite, both versions, on every revision it supports, against the real server."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.clients.raw_http_client import site
from tests.conformance.runs import RUNS, carry_out, deviations, expected, faults, subject
from tests.conformance.suite import run


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The URL of the one server that all runs share, one after the other, as the suite requires."""
    with subject(tmp_path_factory.mktemp("conformance")) as url:
        yield url


@pytest.mark.brief("0.2", "0.2@2025-11-25", "for-2026-07-28")  # the next test has a run of 0.1
@pytest.mark.parametrize("name", RUNS)
def test_the_suite_finds_no_fault(url: str, tmp_path: Path, name: str) -> None:
    found = carry_out(name, url, tmp_path)
    if amiss := faults(found) or deviations(name, found):
        pytest.fail("\n".join([f"{len(amiss)} things are amiss", *amiss]), pytrace=False)
    assert found.code == 0, found.said


def test_the_suite_finds_fault_with_a_server_that_lacks_what_it_asks_for(tmp_path: Path) -> None:
    with site(tmp_path / "site") as listening:
        found = carry_out("0.1", f"{listening.url}/mcp", tmp_path / "found")
    assert found.code == 1
    assert "tools-call-image: tools-call-image: FAILURE" in "\n".join(faults(found))
    assert "tools-call-image: 0 checks passed, 1 should" in deviations("0.1", found)
    assert set(found.scenarios) == set(expected()["0.1"])


def test_a_missing_scenario_is_a_deviation(tmp_path: Path) -> None:
    with site(tmp_path / "site") as listening:
        found = run("0.1", f"{listening.url}/mcp", tmp_path / "found", "--scenario", "ping")
    assert found.passed == {"ping": 1}
    assert faults(found) == []
    amiss = deviations("0.1", found)
    assert "tools-list: no checks passed, 1 should" in amiss
    assert len(amiss) == len(expected()["0.1"]) - 1

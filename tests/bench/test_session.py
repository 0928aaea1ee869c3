"""The session's report counts and compares; the soak test replays it on all three servers."""

import re
from pathlib import Path

import pytest

from tests.bench.session import measure, report
from tests.bench.session.sides import CODING, COMMANDER, OURS


def session(tokens: int, *errors: str, instead: str = "") -> measure.Session:
    steps = {
        measure.DEFINITIONS: measure.Step(texts=["x" * tokens]),
        "look": measure.Step(calls=2, seconds=0.25, texts=["x" * tokens], errors=list(errors)),
        "plan": measure.Step(instead=instead) if instead else measure.Step(calls=1, texts=["x"], structured=["xyz"]),
    }
    return measure.Session("1.2.3", 4, steps)


def test_the_report_adds_up_and_names_the_rows_in_which_another_needs_less(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(report, "count_tokens", lambda texts: [len(text) for text in texts])
    sessions = {OURS: session(50), COMMANDER: session(200, "it broke", instead="no tool: it waits")}
    printed = report.report(sessions).splitlines()
    rows = dict(re.split("  +", line, maxsplit=1) for line in printed if line[:4] == "all ")
    assert rows["all results, as text"].split() == ["51", "200"]
    assert rows["all results, structured if any"].split() == ["3", "0"]
    assert re.split("  +", rows["all calls"]) == ["3, 0.2 s", "2, 0.2 s"]
    assert f"{COMMANDER}, look, error: it broke" in printed
    assert f"{COMMANDER}, plan: no tool: it waits." in printed
    assert printed[-1].endswith("0 with more: met")
    behind = report.report({OURS: session(50), COMMANDER: session(20)}).splitlines()[-1]
    assert "2 with more (definitions, look): met" in behind


@pytest.mark.soak
def test_the_session_runs_without_an_error_on_all_three_servers(tmp_path: Path) -> None:
    sessions = measure.measure(tmp_path, lambda _: None)
    assert list(sessions) == [OURS, COMMANDER, CODING]
    assert not [step.errors for each in sessions.values() for step in each.steps.values() if step.errors]
    assert not [step.instead for step in sessions[OURS].steps.values() if step.instead]
    assert sessions[OURS].tools == 13
    built = sessions[OURS].steps[measure.BUILT].texts[-1]
    assert measure.FINISHED in built and "\r" not in built and "\x1b" not in built
    assert len(report.fewest(sessions)) <= report.MOST_ROWS, report.report(sessions)

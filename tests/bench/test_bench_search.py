"""A search takes as long as its slowest engine or the deadline, not the sum: the benchmark at a fifth of its times."""

from dataclasses import replace

from tests.bench.search import DEADLINES, measure, report


def test_a_search_takes_as_long_as_its_slowest_engine_or_the_deadline_and_not_the_sum() -> None:
    figures = measure(1, 0.2, lambda _: None)
    assert [one.deadline for one in figures] == list(DEADLINES)
    assert all(one.took < min(one.expected + 0.5, one.total / 2) for one in figures), report(figures)
    assert "NOT MET" in report([replace(figures[0], took=9.0)])

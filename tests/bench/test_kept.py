"""A ratio that has got worse is found, and noise is not."""

from tests.bench import kept
from tests.bench.__main__ import CHECKED
from tests.bench.measure import Figures
from tests.bench.report import Target

MORE = Target("more is better", "rate", "them", 2.0, True)
LESS = Target("less is better", "time", "them", 2.0, False)
KEPT = {MORE.says: 3.0, LESS.says: 1.5}


def ratios(rate: float, time: float) -> dict[str, float]:
    figures = Figures()
    for side, factor in (("toolgate", (rate, time)), ("them", (1.0, 1.0))):
        figures.add(side, "rate", factor[0])
        figures.add(side, "time", factor[1])
    return kept.ratios_of(figures, (MORE, LESS))


def test_a_ratio_that_is_worse_by_more_than_noise_is_found() -> None:
    worse = kept.find_worse(ratios(2.5, 1.8), KEPT, (MORE, LESS))
    assert worse == {
        MORE.says: "more is better: 2.50, and 3.00 is kept",
        LESS.says: "less is better: 1.80, and 1.50 is kept",
    }


def test_noise_and_what_is_better_pass() -> None:
    assert kept.find_worse(ratios(2.7, 1.7), KEPT, (MORE, LESS)) == {}
    assert kept.find_worse(ratios(9.0, 0.1), KEPT, (MORE, LESS)) == {}


def test_each_ratio_that_is_felt_is_kept_and_is_one_of_a_target() -> None:
    assert set(kept.read_kept()) == {*kept.FELT} <= {target.says for targets in CHECKED.values() for target in targets}

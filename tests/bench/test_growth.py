"""The growth table finds what grows in proportion and passes what does not."""

from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path

from tests.bench.growth.measure import Growth, Row, Trial, measure, report
from tests.bench.growth.rows import ROWS


def row(says: str, cost: Callable[[int], float]) -> Row:
    """Return a row whose action uses `cost(n)` seconds of a clock of its own."""

    @contextmanager
    def prepare(folder: Path, size: int) -> Generator[Trial]:
        assert folder.is_dir() and not list(folder.iterdir())
        used = [0.0]

        def act() -> None:
            used[0] += cost(size)

        yield Trial(act, lambda: used[0])

    return Row(says, 10, prepare)


def test_what_grows_in_proportion_is_missed_and_what_does_not_is_met(tmp_path: Path) -> None:
    rows = (row("a walk", lambda size: size / 1000), row("a look", lambda size: 0.002))
    walk, look = measure(tmp_path, rows, 3, lambda _: None)
    assert [round(slope, 3) for slope in walk.slopes] == [1.0, 1.0] and not walk.is_met
    assert [round(slope, 3) for slope in look.slopes] == [0.0, 0.0] and look.is_met
    shown = report([walk, look]).splitlines()
    assert "160:   160.00 ms" in shown[0] and shown[0].endswith("slope  1.00, to be flat: MISSED")
    assert shown[1].endswith("slope  0.00, to be flat: met")


def test_a_row_may_have_a_slope_of_its_own(tmp_path: Path) -> None:
    assert Growth(Row("some", 1, row("", float).prepare, most=0.6), (1.0, 2.0, 4.0)).is_met


def test_each_row_of_the_table_has_its_own_words() -> None:
    assert len({row.says for row in ROWS}) == len(ROWS)

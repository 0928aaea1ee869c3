"""An action costs the same, however much there is beside it: the rows of the growth table, in SQLite's instructions.

`python -m tests.bench --only growth` measures the same rows in processor time.
"""

from pathlib import Path

import pytest

from tests.bench.growth import stores
from tests.bench.growth.measure import FACTOR, Row
from tests.server.state.steps import counted_steps

SMALL = 32  # rows beside the action: enough for what looks at some of the first
MORE = 1.5  # times the instructions: a deeper tree of an index takes some


def count_steps(row: Row, folder: Path, size: int) -> int:
    folder.mkdir()
    with counted_steps() as counter, row.prepare(folder, size) as trial:
        trial.act()  # the first time, it may find what it does not again
        counter.count = 0
        trial.act()
        return counter.count


@pytest.mark.parametrize("row", stores.FLAT_ROWS, ids=lambda row: row.says)
def test_an_action_visits_no_more_rows_where_there_are_more(row: Row, tmp_path: Path) -> None:
    few = count_steps(row, tmp_path / "few", SMALL)
    many = count_steps(row, tmp_path / "many", SMALL * FACTOR**2)
    assert 0 < many < few * MORE, f"{few} instructions beside {SMALL} rows, {many} beside {SMALL * FACTOR**2}"

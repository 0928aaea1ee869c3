"""`make test` runs pairs of parameters or some in turn, and leaves the rest of their product to the soak."""

from itertools import combinations, product

from tests.pairs import choose, choose_next


def test_each_two_values_meet_in_a_third_of_the_runs() -> None:
    rows = [*product(range(5), range(3), range(3))]
    chosen = [rows[place] for place in choose(rows)]
    for first, second in combinations(range(3), 2):
        assert {(row[first], row[second]) for row in chosen} == {(row[first], row[second]) for row in rows}
    assert len(chosen) <= len(rows) / 2.5


def test_of_two_parameters_each_value_runs_once() -> None:
    rows = [*product(range(5), range(3))]
    chosen = [rows[place] for place in choose(rows)]
    assert ({row[0] for row in chosen}, {row[1] for row in chosen}) == ({*range(5)}, {*range(3)})
    assert len(chosen) == 5


def test_the_tests_of_a_module_begin_at_different_places() -> None:
    rows = [*product(range(5), range(3))]
    chosen = [choose(rows, first) for first in range(len(rows))]
    assert set().union(*chosen) == {*range(len(rows))}


def test_each_turn_has_the_next_values_and_none_is_left_out() -> None:
    assert [choose_next(3, 1, turn) for turn in range(4)] == [{0}, {1}, {2}, {0}]
    assert [choose_next(3, 2, turn) for turn in range(3)] == [{0, 1}, {0, 2}, {1, 2}]
    assert choose_next(2, 3, 0) == {0, 1}

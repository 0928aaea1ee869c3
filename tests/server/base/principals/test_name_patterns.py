"""Patterns of names: the last one that matches decides."""

import pytest

from toolgate.server.base.principals.name_patterns import check_order, is_chosen, parse_pattern

NAMES = ("search_web", "search_private", "Search_web", "delete")


@pytest.mark.parametrize(
    ("patterns", "chosen"),
    [
        ([], NAMES),
        (["*"], NAMES),
        (["search_*"], ("search_web", "search_private")),
        (["search_*", "!search_private"], ("search_web",)),
        (["!search_private"], ("search_web", "Search_web", "delete")),
        (["!search_*", "search_web"], ("search_web", "Search_web", "delete")),
        (["*", "!*"], ()),
        (["[dS]*"], ("Search_web", "delete")),
        (["search"], ()),
    ],
)
def test_the_last_pattern_that_matches_decides(patterns: list[str], chosen: tuple[str, ...]) -> None:
    assert tuple(name for name in NAMES if is_chosen(name, patterns)) == chosen


@pytest.mark.parametrize("word", ["", "!", " a", "a\n", "a" * 201])
def test_a_pattern_that_can_match_no_name_is_refused(word: str) -> None:
    with pytest.raises(ValueError, match="must be patterns of names"):
        parse_pattern(word)


def test_a_star_that_takes_back_what_was_left_out_is_refused() -> None:
    check_order(["*", "!delete"])
    with pytest.raises(ValueError, match=r'"\*" takes back .!delete.*: write "\*" first'):
        check_order(["a", "!delete", "*"])

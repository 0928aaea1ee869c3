"""Text functions that errors are made with."""

import pytest

from toolgate.tools.api.text import closest


@pytest.mark.parametrize(
    ("word", "choice"),
    [("cmd", "command"), ("bash", "Bash"), ("comand", "command"), ("timeuot", "timeout"), ("xyz", None), ("", None)],
)
def test_the_closest_choice_is_found_whatever_its_case(word: str, choice: str | None) -> None:
    assert closest(word, ["Bash", "command", "timeout"]) == choice


def test_a_word_of_a_megabyte_costs_no_more_than_a_short_one() -> None:
    assert closest("command" * 150_000, ["command" * 9, "timeout"]) == "command" * 9

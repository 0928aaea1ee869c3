"""The text functions of error messages."""

import pytest

from toolgate.tools.api.text import closest


@pytest.mark.parametrize(
    ("word", "choice"),
    [("cmd", "command"), ("bash", "Bash"), ("comand", "command"), ("timeuot", "timeout"), ("xyz", None), ("", None)],
)
def test_the_closest_choice_is_found_whatever_its_case(word: str, choice: str | None) -> None:
    assert closest(word, ["Bash", "command", "timeout"]) == choice


def test_comparing_a_megabyte_of_name_is_as_cheap_as_a_short_one() -> None:
    assert closest("command" * 150_000, ["command" * 9, "timeout"]) == "command" * 9

"""The text functions of error messages."""

import pytest

from toolgate.tools.api.text.cleaning import closest, strip_markup


@pytest.mark.parametrize(
    ("word", "choice"),
    [("cmd", "command"), ("bash", "Bash"), ("comand", "command"), ("timeuot", "timeout"), ("xyz", None), ("", None)],
)
def test_the_closest_choice_is_found_whatever_its_case(word: str, choice: str | None) -> None:
    assert closest(word, ["Bash", "command", "timeout"]) == choice


def test_comparing_a_megabyte_of_name_is_as_cheap_as_a_short_one() -> None:
    assert closest("command" * 150_000, ["command" * 9, "timeout"]) == "command" * 9


@pytest.mark.parametrize(
    ("markup", "text"),
    [
        ("CO<sub>2</sub> and C<SUB>6</SUB>H<sub>12</sub>", "CO₂ and C₆H₁₂"),
        ("10<sup>-6</sup> m<sup class='x'>2</sup>, x<sup>n</sup>", "10^-6 m^2, x^n"),
        ("the 1<sup>st</sup> of <sup>many words</sup>", "the 1st of many words"),
        ("soft\u00adhy&shy;phen zero\u200bwidth&#8203;", "softhyphen zerowidth"),
    ],
)
def test_markup_becomes_a_line_that_says_the_same(markup: str, text: str) -> None:
    assert strip_markup(markup, 100) == text

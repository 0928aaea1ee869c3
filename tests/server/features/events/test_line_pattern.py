"""Patterns for lines of output."""

import time

import pytest

from toolgate.server.features.events.sources.line_pattern import MAX_LINE, matches_line


@pytest.mark.parametrize(
    ("pattern", "line"),
    [
        ("ready", "server ready."),
        ("*", "anything"),
        ("listen*port ????", "listening on port 8080"),
        ("a.c", "a.c"),
        ("[x](y)+", "[x](y)+"),
        ("?", "é"),
    ],
)
def test_a_line_that_holds_the_pattern_matches(pattern: str, line: str) -> None:
    assert matches_line(pattern, line)


@pytest.mark.parametrize(
    ("pattern", "line"),
    [("ready", "Ready"), ("a.c", "abc"), ("b*a", "ab"), ("port ????", "port 80"), ("x", "y" * MAX_LINE + "x")],
)
def test_another_line_does_not(pattern: str, line: str) -> None:
    assert not matches_line(pattern, line)


@pytest.mark.parametrize("pattern", ["*a" * 128 + "b", "?" * 255 + "b", "a" * 255 + "b", "a?" * 127 + "b"])
def test_no_pattern_takes_long(pattern: str) -> None:
    begin = time.process_time()
    assert not matches_line(pattern, "a" * MAX_LINE)
    assert time.process_time() - begin < 0.2

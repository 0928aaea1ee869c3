"""The small project of the session, and the page it reads."""

from pathlib import Path

from tests.tools.fake_web_site import Answer

MODULE = '''"""Prices of tickets."""

ADULT = 12.0
CHILD = 5.0


def total(adults, children=0, discount=0.0):
    """Return the price of a group, less a discount between 0 and 1."""
    price = adults * ADULT + children * CHILD
    return price * discount
'''
WRONG, RIGHT = "    return price * discount", "    return price * (1 - discount)"
TESTS = """import unittest

from tickets import total


class Total(unittest.TestCase):
    def test_group(self):
        self.assertEqual(total(2, 3), 39.0)

    def test_discount(self):
        self.assertEqual(total(2, discount=0.5), 12.0)


if __name__ == "__main__":
    unittest.main()
"""
BUILD = """#!/bin/sh
for part in core pages docs; do
    for step in 1 2 3 4 5 6 7 8; do
        printf '%s: compiled file %s of 8\\r' "$part" "$step"
        sleep 0.1
    done
    printf '\\n\\033[32m%s is ready\\033[0m\\n' "$part"
done
echo 'build finished'
"""
FINISHED = "build finished"  # the build's last line
RUN_TESTS = "python3 -m unittest -v test_tickets"
PARAGRAPH = (
    "Since version 2 a discount is given as a fraction between 0 and 1. A discount of 0.25 lowers the price of a group "
    "by a quarter. Children count as half an adult for the size of a group, but not for its price."
)
LINKS = "".join(f'<li><a href="/page{number}">Section {number} of the handbook</a></li>' for number in range(40))
RULES = "".join(f"<h2>Rule {number}</h2><p>{PARAGRAPH}</p>" for number in range(1, 5))
PAGE = f"""<!doctype html><html><head><title>Discounts</title><style>body {{ margin: 0; font: 16px sans-serif }}</style>
<script>window.visits = (window.visits || 0) + 1;</script></head><body><nav><ul>{LINKS}</ul></nav>
<main><article><h1>Discounts</h1>{RULES}</article></main>
<footer><p>Handbook of the ticket office</p></footer></body></html>""".encode()
PAGES: dict[str, Answer] = {"/discounts": (200, {"content-type": "text/html; charset=utf-8"}, PAGE)}


def write_project(folder: Path) -> None:
    """Write the project's three files."""
    folder.mkdir(parents=True)
    (folder / "tickets.py").write_text(MODULE)
    (folder / "test_tickets.py").write_text(TESTS)
    (folder / "build.sh").write_text(BUILD)

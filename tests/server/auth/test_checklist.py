"""Check that each item of the OAuth checklist is named by a test: in its name, its docstring or a comment. TK-10 is a
draft and left out."""

import ast
import re
from pathlib import Path

import pytest

from tests.clients.raw_client import ROOT

LAST = {"PR": 16, "AS": 5, "RG": 10, "AZ": 10, "TK": 11, "SEC": 18, "MCP": 13}
ITEMS = [f"{kind}-{number:02}" for kind, last in LAST.items() for number in range(1, last + 1)]
ITEMS.remove("TK-10")
SAID = re.compile(rf"(?<![A-Za-z0-9])({'|'.join(LAST)})[-_](\d\d)(?!\d)", re.IGNORECASE)


def test_every_item_of_the_checklist_is_in_some_test() -> None:
    files = (path for path in (ROOT / "tests").rglob("test_*.py") if path != Path(__file__))  # ours are examples
    found = {item for path in files for item in _said_in(path)}
    assert not set(ITEMS) - found
    assert not found - set(ITEMS), "ids that the checklist does not have"


@pytest.mark.parametrize(
    ("source", "items"),
    [
        ("def test_pr_01_as_02_x(): ...", {"PR-01", "AS-02"}),
        ("def test_x():\n    'RG-03: so it is.'", {"RG-03"}),
        ("# AZ-04\n@mark\ndef test_x(): ...", {"AZ-04"}),
        ("def test_x():\n    pass  # SEC-05", {"SEC-05"}),
        ("# PR-01\n\nx = 1\n\ndef test_x(): ...", set()),
        ("def helper_pr_01(): ...", set()),
    ],
)
def test_an_item_counts_only_where_a_test_says_it(source: str, items: set[str], tmp_path: Path) -> None:
    path = tmp_path / "test_it.py"
    path.write_text(source)
    assert _said_in(path) == items


def _said_in(path: Path) -> set[str]:
    text = path.read_text()
    if SAID.search(text) is None:
        return set()
    lines = text.splitlines()
    found: set[str] = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("test_"):
            first = min([node.lineno, *(each.lineno for each in node.decorator_list)]) - 1
            while first > 0 and lines[first - 1].startswith("#"):
                first -= 1
            said = "\n".join(lines[first : node.end_lineno])
            found |= {f"{kind.upper()}-{number}" for kind, number in SAID.findall(said)}
    return found

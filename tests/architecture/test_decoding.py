"""No handler catches msgspec's errors of decoding alone: bytes that are not UTF-8 raise UnicodeDecodeError.

`decode_json` raises one error for both. Where a compiled decoder is faster, the handler names both.
"""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
ROOMS = ("server", "tools", "transports", "plugins")
OF_DECODING = {"msgspec.DecodeError", "msgspec.MsgspecError", "DecodeError", "MsgspecError"}
OF_TYPES = {"msgspec.ValidationError", "ValidationError"}
OF_TEXT = {"ValueError", "UnicodeDecodeError", "UnicodeError", "Exception", "BaseException"}


def find_halves(tree: ast.AST) -> Iterator[int]:
    """Yield the line of each `try` that catches what msgspec raises in decoding, and not what bad UTF-8 raises."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Try):
            caught = {name for handler in node.handlers for name in _names(handler.type)}
            decodes = any(isinstance(each, ast.Attribute) and each.attr == "decode" for each in _walk(node.body))
            of_msgspec = OF_DECODING | OF_TYPES if decodes and _has_msgspec(node.body) else OF_DECODING
            if caught & of_msgspec and not caught & OF_TEXT:
                yield node.lineno


def _names(caught: ast.expr | None) -> list[str]:
    if caught is None:
        return ["BaseException"]
    return [ast.unparse(each) for each in (caught.elts if isinstance(caught, ast.Tuple) else [caught])]


def _walk(body: list[ast.stmt]) -> Iterator[ast.AST]:
    for statement in body:
        yield from ast.walk(statement)


def _has_msgspec(body: list[ast.stmt]) -> bool:
    return any("msgspec.json.decode" in ast.unparse(statement) for statement in body)


@pytest.mark.parametrize("room", ROOMS)
def test_who_catches_bad_json_catches_bad_utf_8_too(room: str) -> None:
    found = {
        f"{path.relative_to(ROOT)}:{line}"
        for path in sorted((ROOT / room).rglob("*.py"))
        for line in find_halves(ast.parse(path.read_text()))
    }
    assert found == set(), "use decode_json of toolgate.tools.api.text.json_text, or catch UnicodeDecodeError as well"


@pytest.mark.parametrize(
    ("caught", "is_half"),
    [
        ("msgspec.DecodeError", True),
        ("(OSError, msgspec.MsgspecError)", True),
        ("msgspec.ValidationError", True),
        ("(msgspec.DecodeError, UnicodeDecodeError)", False),
        ("(msgspec.MsgspecError, ValueError)", False),
        ("JsonError", False),
    ],
)
def test_the_rule_finds_a_half(caught: str, is_half: bool) -> None:
    text = f"try:\n    x = msgspec.json.decode(data, type=int)\nexcept {caught}:\n    pass\n"
    assert bool(list(find_halves(ast.parse(text)))) == is_half

"""The program uses no private name of the libraries that serve its connections."""

import ast

import pytest

from tests.architecture import rooms
from tests.architecture.private_names import find_private_names, own_names

ALLOWED = {
    "transports/http/wire/connection.py: _loop",  # the name of an argument that uvicorn passes
    "tools/api/plugins/loop_watchdog.py: _current_frames",  # of sys, where it is documented
    "tools/api/plugins/reload.py: _cleanups",  # of typing: without it, its caches hold replaced classes
    "tools/api/context/services.py: _base_executable",  # of sys: without it, another path is shown
}


def test_no_private_name_of_a_library_is_used() -> None:
    trees = {path: rooms.parse(path) for path in rooms.sources()}
    own = own_names(trees)
    uses = {f"{path}: {name}" for path, tree in trees.items() for name in find_private_names(tree, own)}
    assert uses == ALLOWED


@pytest.mark.parametrize(
    ("source", "name"),
    [
        ("from asyncio import _get_running_loop", "_get_running_loop"),
        ("from starlette._utils import is_async_callable", "_utils"),
        ("import uvicorn._types", "_types"),
        ("import asyncio\nasyncio.events._set_running_loop(None)", "_set_running_loop"),
        ("import asyncio as a\na.get_running_loop()._own", "_own"),
        ("transport._sock", "_sock"),
        ("getattr(transport, '_sock')", "_sock"),
        ("import uvicorn\nclass S(uvicorn.Server):\n def _log_started_message(self): ...", "_log_started_message"),
        ("from uvicorn import Server\nclass S(Server):\n def f(self): self._captured_signals", "_captured_signals"),
        ("import asyncio\nclass P(asyncio.Protocol):\n def __init__(self, _loop): ...", "_loop"),
    ],
)
def test_a_private_name_is_seen(source: str, name: str) -> None:
    assert name in set(find_private_names(ast.parse(source), frozenset({"_own"})))


def test_names_of_the_program_and_special_names_are_no_ones_else() -> None:
    tree = ast.parse(
        "class A:\n def __init__(self):\n  self._a = 1\n def b(self, other):\n  return other._a, self.__class__"
    )
    assert set(find_private_names(tree, own_names({"": tree}))) == set()

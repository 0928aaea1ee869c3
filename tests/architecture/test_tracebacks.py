"""No function holds an error whose traceback holds the function: such a circle keeps the arguments of all its callers
until the next garbage collection."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.needed_features import is_deleted

ROOT = Path(__file__).parents[2]
ROOMS = ("server", "tools", "transports", "plugins")
ALLOWED = (  # most of these serve no requests
    "server/cli/",
    "server/features/remote_checks/",
    "server/config/",
    "tools/workspace/processes/command_start.py",
)
FREES = ("drop_tracebacks", "log_fault")  # functions that drop the tracebacks of their argument

Function = ast.FunctionDef | ast.AsyncFunctionDef


def find_circles(tree: ast.AST) -> Iterator[tuple[str, int]]:
    """Yield the function and line of each error that is raised from a local variable, or stored in one, and stays."""
    for function in ast.walk(tree):
        if isinstance(function, Function):
            nodes = [*ast.walk(function)]
            held = [(node, name) for node in nodes for name in _names_held(node)]
            freed = {name for node in nodes for name in _names_freed(node)} if held else set()
            for node, name in held:
                if name not in freed:
                    yield function.name, node.lineno  # type: ignore[attr-defined]  # a statement


def _names_held(node: ast.AST) -> Iterator[str]:
    """Yield the variables by which a statement makes a circle; "" for one that is no plain variable."""
    match node:
        case ast.Raise(exc=ast.Name(id)) if id[0].islower():
            yield id
        case ast.ExceptHandler(name=str() as error):
            yield from _names_stored(node, error)


def _names_stored(handler: ast.ExceptHandler, error: str) -> Iterator[str]:
    for node in ast.walk(handler):
        match node:
            case ast.Call(func=ast.Name(id), args=[ast.Name(argument), *_]) if id in FREES and argument == error:
                return
    for node in ast.walk(handler):
        match node:
            case ast.Assign(targets=[target], value=ast.Name(id)) if id == error:
                yield target.id if isinstance(target, ast.Name) else ""
            case ast.Call(func=ast.Name("Failure"), args=[_, ast.Name(id)]) if id == error:
                yield ""


def _names_freed(node: ast.AST) -> Iterator[str]:
    match node:
        case ast.Delete(targets):
            yield from (target.id for target in targets if isinstance(target, ast.Name))
        case ast.ExceptHandler(name=str() as error):
            yield error  # Python deletes it


def find_all() -> Iterator[str]:
    """Yield `file::function:line` of each."""
    for path in sorted(each for room in ROOMS for each in (ROOT / room).rglob("*.py")):
        name = str(path.relative_to(ROOT))
        for function, line in find_circles(ast.parse(path.read_text())):
            yield f"{name}::{function}:{line}"


def test_no_function_holds_an_error_that_holds_the_function() -> None:
    found = list(find_all())
    assert [each for each in found if not each.startswith(ALLOWED)] == []
    unused = [each for each in ALLOWED if not any(one.startswith(each) for one in found)]
    assert [each for each in unused if not is_deleted(each)] == []


@pytest.mark.parametrize(
    "body",
    [
        "refusal = ValueError()\n    raise refusal",
        "raise refusal from None",
        "try: pass\n    except OSError as error:\n        failure = error",
        "try: pass\n    except OSError as error:\n        self.failure = error",
        "try: pass\n    except RpcError as error:\n        return Failure(1, error)",
    ],
)
def test_such_a_function_is_found(body: str) -> None:
    assert len(list(find_circles(ast.parse(f"def work(self, refusal):\n    {body}")))) == 1


@pytest.mark.parametrize(
    "body",
    [
        "raise ValueError",
        "try: pass\n    except OSError as error:\n        failure = error.with_traceback(None)",
        "try: pass\n    except OSError as error:\n        drop_tracebacks(error)\n        self.failure = error",
        "try:\n        raise refusal\n    finally:\n        del refusal",
    ],
)
def test_another_is_not(body: str) -> None:
    assert list(find_circles(ast.parse(f"def work(self, refusal):\n    {body}"))) == []

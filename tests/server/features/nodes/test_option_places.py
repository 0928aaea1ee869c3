"""A node takes each option that its code reads: one whose row forgets its place would be refused there."""

import ast
from collections.abc import Iterator
from pathlib import Path

from tests.architecture import rooms
from toolgate.server.config.option import SERVER
from toolgate.server.config.options import OPTIONS

CALLED = (Path("server/app/build.py"), Path("server/config/load.py"))  # a node runs some of their functions
WHOLE = (
    *("server/features/nodes/commands/node.py", "server/features/nodes/connect.py"),
    *("server/workspaces", "server/config/protected_paths.py"),
)
OF_SERVERS = {  # what a node reads and takes no option for
    "auth": "without sign-in a server's callers are one; a node's people are several",
    "hold": "it says how long a start waits for others; a node's wait as long as the default",
    "host": "a node is public where its sockets are",
    "plugins": "a server has them",
    "public_url": "as host",
    "skills": "as plugins",
}


def find_keys() -> set[str]:
    """Return the keys of the options that the code of a node reads."""
    definitions = (each for path in CALLED for each in rooms.nodes(path))
    functions = {each.name: each for each in definitions if isinstance(each, ast.FunctionDef)}
    found: set[str] = set()
    waiting: list[ast.AST] = [rooms.parse(path) for entry in WHOLE for path in rooms.find_modules(entry)]
    while waiting:
        names = {*find_names(waiting.pop())} - found
        found |= names
        waiting += [functions[name] for name in names & functions.keys()]
    return found & {option.key for option in OPTIONS}


def find_names(tree: ast.AST) -> Iterator[str]:
    """Yield the attributes of options that code reads, and the functions that it calls.

    Only the functions of `CALLED` have options for their `self`: elsewhere `self.name` is no option.
    """
    owners = {"config", "options", "build"} | ({"self"} if isinstance(tree, ast.FunctionDef) else set())
    for node in ast.walk(tree):
        match node:
            case ast.Attribute(ast.Name(owner), name) if owner in owners:
                yield name
            case ast.Call(ast.Name(name)):
                yield name


def test_a_node_takes_each_option_that_its_code_reads() -> None:
    of_servers = {option.key for option in OPTIONS if option.place == SERVER}
    keys = find_keys()
    assert keys & of_servers == OF_SERVERS.keys(), "name its place in its row, or here the reason that it has none"
    read_by_functions = {"allow_private", "browser", "idle_after", "sandbox", "state"}
    assert read_by_functions | {"limit", "sandbox_uids", "node_certificate"} <= keys

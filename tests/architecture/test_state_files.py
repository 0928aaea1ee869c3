"""Files of the state are opened by tools/api/regular_file.py: after a bad copy anything may be there."""

import ast
from collections.abc import Iterator
from pathlib import Path

from tests.architecture import rooms
from tests.needed_features import is_deleted

ROOMS = (
    *("server/state", "server/workspaces", "server/features/telemetry", "server/features/nodes"),
    *("tools/workspace/output/spool.py", "tools/workspace/commands/cwd_tracking.py", "tools/builtin/skills/skills.py"),
)
ALLOWED = {  # file and function
    ("server/features/nodes/node/moves.py", "_pack"): "an archive of a move, made by this process",
    ("server/features/nodes/node/moves.py", "_unpack"): "as above",
    ("server/features/nodes/node/moves.py", "_read_piece"): "as above",
    ("server/features/nodes/node/moves.py", "_write_piece"): "as above",
    ("server/state/sqlite/snapshot.py", "_copy"): "a copy that this process made",
    ("server/workspaces/free_space.py", "_read_text"): "files of the kernel",
}
NO_WAIT = ("O_NONBLOCK", "O_EXCL", "O_DIRECTORY", "O_PATH", "READ_FLAGS", "CREATE_FLAGS", "READ", "FOLDER")


def find_bare(path: Path) -> Iterator[tuple[str, int]]:
    """Yield the function and line of each call that opens a file and may wait for it."""
    for function in ast.walk(rooms.parse(path)):
        if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef):
            for node in ast.walk(function):
                if isinstance(node, ast.Call) and _waits(node):
                    yield function.name, node.lineno


def _waits(call: ast.Call) -> bool:
    text = ast.unparse(call.func)
    if text == "os.open":
        return not any(word in ast.unparse(call) for word in NO_WAIT)
    name = text.rpartition(".")[2]
    if name in ("read_bytes", "read_text"):
        return True
    mode = ast.unparse(call.args[0]) if call.args else ""
    return name == "open" and "." in text and mode in ("'rb'", "'r'", "'r+b'")


def test_no_file_of_the_state_is_opened_so_that_it_may_wait() -> None:
    paths = [path for room in ROOMS for path in rooms.find_modules(room)]
    found = {(str(path), function): line for path in paths for function, line in find_bare(path)}
    assert {at: line for at, line in found.items() if at not in ALLOWED} == {}, "use open_regular or read_regular"
    assert [at for at in ALLOWED.keys() - found.keys() if not is_deleted(at[0])] == [], "these are opened so no longer"

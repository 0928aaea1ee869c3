"""Build the command line and the input of worker.py for a sandbox, which does not show this folder."""

import marshal
import os
import stat
from collections.abc import Sequence
from functools import cache
from types import ModuleType
from typing import Any

from toolgate.tools import PYTHON

from . import changing, near, paths, patterns, reading, results, ripgrep, searching, worker

MODULES: Sequence[ModuleType] = (changing, near, paths, patterns, reading, results, ripgrep, searching, worker)
FORMAT = 4  # of marshal, which each Python reads
OTHER = "python3"  # the first on the PATH that the user of the commands may run
# Reads the modules from standard input, and runs those that are imported
LOADER = """
import marshal, sys
from _frozen_importlib import ModuleSpec
codes = marshal.load(sys.stdin.buffer)
class Finder:
    find_spec = lambda name, *_: ModuleSpec(name, Finder, is_package=name == "files") if name in codes else None
    create_module = lambda spec: None
    exec_module = lambda module: exec(codes[module.__name__], module.__dict__)
sys.meta_path.insert(0, Finder)
from files import worker
worker.main()
"""


def build_command(sandbox: str) -> tuple[list[str], bytes]:
    """Return the command line at this sandbox level, and the input before the request."""
    is_own = sandbox != "uid" or _is_open_to_all(PYTHON)
    return [PYTHON if is_own else OTHER, "-I", "-S", "-c", LOADER], _encode_modules(compiled=is_own)


def encode_request(request: dict[str, Any]) -> bytes:
    return marshal.dumps(request, FORMAT)


@cache
def _is_open_to_all(path: str) -> bool:
    """Return whether each user may run the program: the Python of a root user is often in that user's home."""
    while path != "/":
        if not os.stat(path).st_mode & stat.S_IXOTH:
            return False
        path = os.path.dirname(path)
    return True


@cache
def _encode_modules(*, compiled: bool) -> bytes:
    """Return the modules of this package as LOADER reads them, name → code. `compiled`: for this Python alone, and
    20 ms faster."""
    codes: dict[str, Any] = {"files": ""}
    for module in MODULES:
        loader: Any = module.__loader__
        name = f"files.{module.__name__.rpartition('.')[2]}"
        codes[name] = loader.get_code(module.__name__) if compiled else loader.get_source(module.__name__)
    return marshal.dumps(codes, FORMAT)

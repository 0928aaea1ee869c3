"""Check the paths that one program is to see beside what its principal's commands see."""

import os
from collections.abc import Sequence
from pathlib import Path

from toolgate.tools.api.errors import ToolError
from toolgate.tools.workspace.workspace import ProgramAccess

OWN = ("/proc", "/sys", "/dev", "/.toolgate")  # that a sandbox has itself
WHOLE = ("/", "/tmp")  # noqa: S108  # the same; paths below them may be shown


def check_paths(
    access: ProgramAccess, hidden_paths: Sequence[Path], root: Path, shown_paths: Sequence[Path] = ()
) -> None:
    """Raise ToolError for a path that is not there, or must not be seen. Links count as where they lead now.

    Where programs can write, they can put a link in place of a folder, which would lead the next sandbox elsewhere. So
    nothing that a sandbox shows is below a writable path, and no path is in the workspace `root`.
    """
    for path in (*access.readable_paths, *access.writable_paths):
        fault = find_path_fault(path, hidden_paths)
        if fault is None and not path.exists():
            fault = f"there is no {path}"
        if fault is None and is_inside(path, root):
            fault = f"{path} is in the workspace, which is seen anyway"
        if fault is not None:
            raise ToolError(f"files of {access.table}: {fault}")
    for path in access.writable_paths:
        if any(each != path and is_inside(each, path) for each in (root, *shown_paths)):
            raise ToolError(f"files of {access.table}: {path} has the workspace or the command's folder: name others")


def is_inside(path: Path, folder: Path) -> bool:
    """Return whether a path is in a folder, as it is written or where its links lead now."""
    real = os.path.realpath(folder)
    return path.is_relative_to(folder) or Path(os.path.realpath(path)).is_relative_to(real)


def find_path_fault(path: Path, hidden_paths: Sequence[Path]) -> str | None:
    """Return why a path must not be seen, or None. `hidden_paths` are the server's own, without links."""
    real = Path(os.path.realpath(path))
    for each in (path, real):
        if str(each) in WHOLE or any(each.is_relative_to(tree) for tree in OWN):
            return f"{path} is the system's own: name a path in it"
    if any(real.is_relative_to(hidden) or hidden.is_relative_to(real) for hidden in hidden_paths):
        return f"{path} is in a folder of the server's own, or has one: its state, keys and logs are shown to nobody"
    return None

"""Have a bash command record the directory it ends in.

`BASH_ENV` names a file that bash reads first, so the command itself runs unchanged. A command that sets its own EXIT
trap, ends in `exec`, or is killed, records nothing.
"""

import os
import shlex
from collections.abc import Mapping
from pathlib import Path

from toolgate.tools.api.errors import ToolError
from toolgate.tools.workspace import files

MAX_PATH = 4096  # bytes, the system's limit of a path

# The command's settings must neither show our trap nor break it: `set -x`, a DEBUG trap, `ulimit -f 0`.
UNSEEN = "{ builtin trap - DEBUG; builtin set +x; builtin trap '' XFSZ; } >/dev/null 2>&1;"


def add_cwd_trap(environment: Mapping[str, str], rc: Path, cwd_file: Path) -> Mapping[str, str]:
    """Write `rc`, and return the variables that make a command record its directory in `cwd_file`. Raises OSError."""
    trap = f"{UNSEEN} builtin pwd -P 2>/dev/null >|{shlex.quote(str(cwd_file))} || :"
    lines = [f"trap -- {shlex.quote(trap)} EXIT"]
    own = environment.get("BASH_ENV")
    if own is None:
        lines.append("unset BASH_ENV")
    else:  # read the given file as bash would, its value expanded
        lines += [f"BASH_ENV={shlex.quote(own)}", 'eval ". \\"$BASH_ENV\\""']
    rc.write_text("\n".join(lines) + "\n", errors="surrogateescape")
    return {**environment, "BASH_ENV": str(rc)}


def read_cwd(cwd_file: Path, *, must_exist: bool) -> Path | None:
    """Return the directory that a command recorded, or None if the record is no path. `must_exist`: None also for a
    directory that the server does not see."""
    try:
        data = files.read_below(cwd_file.parent, cwd_file.name, MAX_PATH).removesuffix(b"\n")
    except ToolError:
        return None
    folder = Path(os.fsdecode(data))
    if not folder.is_absolute() or b"\0" in data:
        return None
    return folder if not must_exist or folder.is_dir() else None

"""Have a bash command record the directory it ends in, and the one before, to which `cd -` returns.

`BASH_ENV` names a file that bash reads first, so the command itself runs unchanged. A command that sets its own EXIT
trap, ends in `exec`, or is killed, records nothing.
"""

import hashlib
import os
from collections.abc import Mapping
from pathlib import Path

import msgspec

from toolgate.tools.api.regular_file import open_regular

MAX_PATH = 4096  # bytes, the system's limit of a path
MAX_RECORD = 2 * MAX_PATH + 2  # bytes: two paths, a newline and a NUL
PREVIOUS = "OLDPWD"
FILE, OWN = "TOOLGATE_CWD_FILE", "TOOLGATE_BASH_ENV"  # where to record, and the given BASH_ENV; neither is left to see

# The command's settings must neither show our trap nor break it: `set -x`, a DEBUG trap, `ulimit -f 0`.
UNSEEN = "{ builtin trap - DEBUG; builtin set +x; builtin trap '' XFSZ; } >/dev/null 2>&1;"
RECORD = r"{ builtin pwd -P && builtin printf '\\0%s' \"\${OLDPWD-}\"; }"  # inside double quotes
RC = f"""\
builtin printf -v {FILE} %q "${FILE}"
builtin trap -- "{UNSEEN} {RECORD} 2>/dev/null >|${FILE} || :" EXIT
builtin unset {FILE}
if [[ -n ${{{OWN}+given}} ]]; then  # read it as bash would, its value expanded
    BASH_ENV=${OWN}
    builtin unset {OWN}
    eval ". \\"$BASH_ENV\\""
else
    builtin unset BASH_ENV
fi
"""
RC_NAME = f"{hashlib.sha256(RC.encode()).hexdigest()[:8]}.rc"  # servers of several versions may share a spool


def add_cwd_trap(environment: Mapping[str, str], rc: Path, cwd_file: Path) -> Mapping[str, str]:
    """Return the variables that make a command record its directory in `cwd_file`. `rc` is a file with RC."""
    own = environment.get("BASH_ENV")
    given = {} if own is None else {OWN: own}
    return {**environment, **given, FILE: str(cwd_file), "BASH_ENV": str(rc)}


class Directories(msgspec.Struct, frozen=True):
    """Where a command ended, and the directory before, as `cd -` takes it."""

    cwd: Path
    previous: Path | None


def read_directories(cwd_file: Path, *, must_exist: bool) -> Directories | None:
    """Return the directories that a command recorded, or None if the record is no path. `must_exist`: None also for a
    directory that the server does not see."""
    try:
        descriptor = open_regular(cwd_file, os.O_RDONLY | os.O_NOCTTY)
    except OSError:
        return None
    try:
        data = os.read(descriptor, MAX_RECORD + 1)
    finally:
        os.close(descriptor)
    recorded, _, before = data.partition(b"\0")
    cwd, previous = _to_path(recorded.removesuffix(b"\n")), _to_path(before)
    if cwd is None or len(data) > MAX_RECORD or (must_exist and not os.path.isdir(cwd)):
        return None
    return Directories(cwd, previous)


def _to_path(data: bytes) -> Path | None:
    """Return the absolute path, or None if it is not one."""
    is_path = data.startswith(b"/") and b"\0" not in data and len(data) <= MAX_PATH
    return Path(os.fsdecode(data)) if is_path else None


def empty_if_large(cwd_file: Path) -> None:
    """Empty a file that is longer than two paths: a command that may write nothing else could store data there."""
    try:
        descriptor = open_regular(cwd_file, os.O_WRONLY | os.O_NOCTTY)
    except OSError:
        return
    try:
        if os.fstat(descriptor).st_size > MAX_RECORD:
            os.ftruncate(descriptor, 0)
    finally:
        os.close(descriptor)

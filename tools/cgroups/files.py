"""Read and write a cgroup's files: numbers and words."""

import contextlib
import errno
import os
from pathlib import Path


def write(file: Path, value: object) -> None:
    """Raises an OSError that names the file, as a failed write(2) does not."""
    try:
        descriptor = os.open(file, os.O_WRONLY | os.O_TRUNC | os.O_CLOEXEC)  # never made: a missing one says ENOENT
        try:
            os.write(descriptor, str(value).encode())
        finally:
            os.close(descriptor)
    except OSError as error:
        code = errno.ENOENT if error.errno == errno.ENODEV else error.errno  # removed while it was open
        raise OSError(code, error.strerror, str(file)) from None


def read_number(file: Path, key: str = "") -> int:
    """The number in the file, or on its line that starts with the key; 0 where there is none."""
    for line in _text(file).splitlines():
        *name, value = line.split()[:2] or [""]
        if value.isdecimal() and name == ([key] if key else []):
            return int(value)
    return 0


def read_words(file: Path) -> frozenset[str]:
    """Such as the controllers in cgroup.controllers; none when it can't be read."""
    return frozenset(_text(file).split())


def read_numbers(file: Path) -> list[int]:
    """Such as the processes in cgroup.procs; none when the group is gone."""
    return [int(word) for word in _text(file).split() if word.isdecimal()]


def list_groups(group: Path) -> list[Path]:
    """The group and all groups in it, the deepest first."""
    found = [group]
    for each in found:
        with contextlib.suppress(FileNotFoundError), os.scandir(each) as entries:
            found += [Path(entry.path) for entry in entries if entry.is_dir(follow_symlinks=False)]
    return found[::-1]


def _text(file: Path) -> str:
    try:
        return file.read_text()
    except OSError:
        return ""

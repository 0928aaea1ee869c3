"""Read and write numbers and words in a cgroup's files."""

import contextlib
import errno
import os
from pathlib import Path


def write(file: Path, value: object) -> None:
    """Write the value. Raises an OSError that names the file, which write(2) does not."""
    try:
        descriptor = os.open(file, os.O_WRONLY | os.O_TRUNC | os.O_CLOEXEC)  # no O_CREAT: a missing file is ENOENT
        try:
            os.write(descriptor, str(value).encode())
        finally:
            os.close(descriptor)
    except OSError as error:
        code = errno.ENOENT if error.errno == errno.ENODEV else error.errno  # removed while it was open
        raise OSError(code, error.strerror, str(file)) from None


def read_number(file: Path, key: str = "") -> int:
    """Return the number in the file, or on its line for the key; 0 if there is none."""
    for line in _text(file).splitlines():
        *name, value = line.split()[:2] or [""]
        if value.isdecimal() and name == ([key] if key else []):
            return int(value)
    return 0


def read_words(file: Path) -> frozenset[str]:
    """Return the file's words, such as controllers; none if it can't be read."""
    return frozenset(_text(file).split())


def read_numbers(file: Path) -> list[int]:
    """Return the file's numbers, such as processes; none if the group is gone."""
    return [int(word) for word in _text(file).split() if word.isdecimal()]


def list_groups(group: Path) -> list[Path]:
    """Return the group and all groups in it, the deepest first."""
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

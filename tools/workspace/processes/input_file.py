"""Open the standard input of a process as a file without a name."""

import os
from collections.abc import Generator
from contextlib import contextmanager


@contextmanager
def open_input(data: bytes) -> Generator[int, None, None]:
    """Yield the descriptor of an unnamed file with the data, at its beginning."""
    if hasattr(os, "memfd_create"):
        file = os.memfd_create("input", os.MFD_CLOEXEC)
    else:  # not Linux
        import tempfile  # start-up

        with tempfile.TemporaryFile() as unnamed:
            file = os.dup(unnamed.fileno())
    try:
        left = memoryview(data)
        while left:
            left = left[os.write(file, left) :]
        os.lseek(file, 0, os.SEEK_SET)
        yield file
    finally:
        os.close(file)

"""Make a folder that every user of the system may enter. pytest's own folders are closed to others, and each session of
pytest closes them again."""

import contextlib
import tempfile
from collections.abc import Iterator
from pathlib import Path


@contextlib.contextmanager
def open_folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="toolgate-", ignore_cleanup_errors=True) as name:
        folder = Path(name)
        folder.chmod(0o755)
        yield folder

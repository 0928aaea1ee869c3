"""Find the words with which a client starts this program."""

import shutil
import sys
from pathlib import Path


def find_program() -> list[str]:
    """Return the command line of the running program, with an absolute path."""
    beside = Path(sys.executable).with_name("toolgate")
    found = str(beside) if beside.exists() else shutil.which("toolgate")
    return [found or str(Path(sys.argv[0]).absolute())]

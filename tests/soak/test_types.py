"""What only `make soak` runs calls its helpers as they are: `make test` does not run it, so it checks the types."""

import os
import subprocess
import sys
from pathlib import Path


def test_the_calls_of_what_only_the_soak_runs_are_as_their_functions_take_them() -> None:
    words = [sys.executable, "-m", "pyright", "-p", str(Path(__file__).parent)]
    environment = {**os.environ, "PYRIGHT_PYTHON_IGNORE_WARNINGS": "1"}
    done = subprocess.run(words, capture_output=True, text=True, timeout=300, env=environment)
    assert done.returncode == 0, done.stdout

"""Suites of one server on three replicas behind nginx: they run again with the option --replicas."""

import subprocess
import sys

import pytest

from tests.clients.raw_client import ROOT

MATRIX = "tests/transports/test_matrix.py"
OAUTH = [f"tests/interop/test_oauth_{client}.py" for client in ("python_sdk", "typescript_sdk", "mcp_remote")]
SUITES = {  # a name → the arguments of pytest
    "matrix": [MATRIX],
    "conformance": ["tests/conformance"],
    "sign-in of clients": OAUTH,
    "authorization server": ["tests/interop/test_oauth_conformance.py"],
    "scopes and owners": ["tests/server/auth/test_step_up.py", "tests/server/auth/test_ownership.py"],
}
SECONDS = 1_800.0


@pytest.mark.soak
@pytest.mark.parametrize("suite", SUITES)
def test_a_suite_passes_on_three_replicas(suite: str) -> None:
    everything = ["-m", ""]  # their soak tests, too
    words = [sys.executable, "-m", "pytest", "--replicas", "3", "-n", "0", *everything, *SUITES[suite]]
    ended = subprocess.run(words, cwd=ROOT, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=SECONDS)
    assert ended.returncode == 0, ended.stdout

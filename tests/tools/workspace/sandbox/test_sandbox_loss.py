"""A sandbox that dies is one warning with its person, the commands and the reason, a count, and a word to the model."""

import os
import signal
from pathlib import Path

import pytest

from tests.clients.raw_client import children, eventually
from tests.clients.raw_http_client import Site, site, spoken
from tests.needed_features import require

COUNT = 3


@pytest.mark.programs("bwrap")
def test_a_sandbox_that_is_killed_is_told_to_the_operator_and_to_the_model(tmp_path: Path) -> None:
    with site(tmp_path, "--sandbox", "bwrap", workspace=False) as at, spoken(at, "http") as server:
        for number in range(COUNT):
            server.text("BackgroundBash", {"command": f"echo {number}; sleep 600"})
        assert read_count(at) == 0
        os.kill(find_inside(at.process.pid), signal.SIGKILL)
        assert eventually(lambda: f"and {COUNT} commands with it" in at.log()), at.log()
        (line,) = [line for line in at.log().splitlines() if "the sandbox of" in line]
        assert "WARNING" in line and "the sandbox of local ended" in line and "process" in line
        told = server.text("Bash", {"command": "echo hi"})
        assert told.count("its sandbox ended with all commands in it") == COUNT, told
        assert read_count(at) == 1


def find_inside(server: int) -> int:
    """Return the process above the commands of the one sandbox of a server. Supervisors are forks of it."""
    found = {pid for pid in children(server) if b"enter.py\0inside" in read_words(pid)}
    (top,) = found - {below for pid in found for below in children(pid)}
    return top


def read_words(pid: int) -> bytes:
    """Return the command line of a process, or nothing once it has ended."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


def read_count(at: Site) -> float:
    require("telemetry")
    text = at.ask("GET", "/metrics")[1].decode()
    return next(
        float(line.split()[1]) for line in text.splitlines() if line.startswith("toolgate_sandboxes_lost_total")
    )

"""`make test` runs files in forks: each test once, with its faults. A fork that dies costs one test."""

import subprocess
import sys
from pathlib import Path

from tests.clients.raw_client import ROOT

CONFTEST = """
import pytest
from tests.workers import Workers

@pytest.hookimpl(tryfirst=True)
def pytest_runtestloop(session):
    Workers(session, 2).run()
    return True
"""
FIRST = """
import os

def test_a_fault():
    print("what it printed")
    assert 1 + 1 == 3

def test_an_end():
    os._exit(3)

def test_what_comes_after(tmp_path):
    assert tmp_path.exists()
"""
SECOND = """
import pytest

@pytest.mark.parametrize("number", range(20))
def test_a_number(number):
    pass

@pytest.mark.skip("unneeded")
def test_skipped():
    pass
"""
UNSEEN = """
class Broken:
    def __del__(self):
        raise ValueError("unseen")

def test_a_fault_that_comes_too_late():
    broken = Broken()
    broken.itself = broken
"""


def run(folder: Path, *options: str, **files: str) -> tuple[int, str]:
    """Run such files in two workers, and return the exit code and the output."""
    for name, text in {"conftest": CONFTEST, **files}.items():
        (folder / f"{name}.py").write_text(text)
    words = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-W", "error", f"--rootdir={folder}"]
    told = [*words, "-q", f"--basetemp={folder}/temporary", *options, str(folder)]
    done = subprocess.run(told, cwd=ROOT, capture_output=True, text=True, timeout=120)
    return done.returncode, done.stdout + done.stderr


def test_each_test_is_reported_once_and_one_that_ends_its_process_fails(tmp_path: Path) -> None:
    code, output = run(tmp_path, "-rA", test_first=FIRST, test_second=SECOND)
    assert code == 1
    assert "1 failed, 21 passed, 1 skipped, 1 error" in output
    assert "assert (1 + 1) == 3" in output and "what it printed" in output
    assert "ERROR at teardown of test_an_end" in output and "the process that ran it ended with 3" in output


def test_a_session_stops_at_the_first_fault_that_it_is_told_to_stop_at(tmp_path: Path) -> None:
    code, output = run(tmp_path, "-x", test_first=FIRST)
    assert code == 1
    assert "1 failed" in output and "test_an_end" not in output


def test_a_fault_after_the_last_test_fails_the_session(tmp_path: Path) -> None:
    code, output = run(tmp_path, test_unseen=UNSEEN)
    assert code == 1
    assert "ended with 1" in output and "ValueError: unseen" in output

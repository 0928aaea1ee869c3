"""Run a command as where the disk is slow: slow_commits.py SECONDS COMMAND… Each fsync takes so long."""

import os
import runpy
import sys
import time

seconds, commit = float(sys.argv[1]), os.fsync


def commit_slowly(file: int) -> None:
    time.sleep(seconds)
    commit(file)


os.fsync = commit_slowly  # type: ignore[assignment]
sys.argv = sys.argv[2:]
runpy.run_path(sys.argv[0], run_name="__main__")

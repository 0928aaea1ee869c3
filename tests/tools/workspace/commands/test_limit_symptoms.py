"""Guesses of a reached limit from a command's output, as the kernel reports most to the process only."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from toolgate.tools.workspace.commands.limit_checks import full_disk, guess_limits
from toolgate.tools.workspace.limits import Limits
from toolgate.tools.workspace.output.run_record import Run

NO_ROOM = "head: error writing 'standard output': No space left on device"
SHOWN = (
    "import pathlib, sys; from toolgate.tools.workspace.commands.limit_checks import full_disk; "
    "print(full_disk(pathlib.Path(sys.argv[1])))"
)


def guesses(text: str, level: str, disk: str = "") -> list[str]:
    run = Run(1, "true", "", 0.0, exit_code=1)
    return list(guess_limits(run, text, Limits(tmp=2**20), level, lambda: disk))


def test_a_private_tmp_may_be_full_only_in_a_sandbox_that_has_one() -> None:
    assert guesses(NO_ROOM, "bwrap") == ["the limit of 1,048,576 bytes of /tmp may have been reached (--limit tmp)"]
    assert guesses(NO_ROOM, "uid") == guesses(NO_ROOM, "none") == []


def test_a_full_disk_is_not_taken_for_a_full_tmp() -> None:
    assert guesses(NO_ROOM, "bwrap", "the disk is full") == ["the disk is full"]
    assert guesses("well", "bwrap", "the disk is full") == []


@pytest.mark.skipif(os.geteuid() != 0, reason="only root mounts a small disk")
@pytest.mark.programs("unshare")
@pytest.mark.parametrize(
    ("options", "fill", "said"),
    [
        ("size=64k", "head -c 100k /dev/zero > d/fill 2>/dev/null", "the disk is full"),
        ("nr_inodes=8", "touch d/1 d/2 d/3 d/4 d/5 d/6 d/7 d/8 2>/dev/null", "the disk has no room for more files"),
        ("size=64k", "true", ""),
    ],
)
def test_a_disk_without_room_for_bytes_or_for_files_is_full(options: str, fill: str, said: str, tmp_path: Path) -> None:
    (tmp_path / "d").mkdir()
    script = f'mount -t tmpfs -o {options} none d; {fill}; exec "$@" d'
    words = ["unshare", "--mount", "--propagation", "private", "sh", "-c", script, "sh", sys.executable, "-c", SHOWN]
    shown = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, timeout=30, check=True)
    assert shown.stdout == f"{said}\n"
    assert full_disk(tmp_path / "nowhere") == ""

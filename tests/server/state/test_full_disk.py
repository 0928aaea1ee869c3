"""A disk without room is named with what to do, by each command and at a start."""

import os
import subprocess
from pathlib import Path

import pytest

from tests.clients.raw_client import COMMAND, PATIENCE
from tests.needed_features import require_for

FULL = """
mount -t tmpfs -o size=4m,mode=700 none state || exit 90
[ "$1" = restore ] || cat /dev/zero > state/fills 2>/dev/null
exec "$0" "$@" --state state
"""


def run_without_room(folder: Path, *words: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
    """Run a command on a state without room: a file system in a mount namespace of its own."""
    (folder / "state").mkdir()
    namespace = ["unshare", "--user", "--map-root-user", "--mount", "bash", "-c", FULL]
    environment = {"PATH": os.environ["PATH"], "HOME": str(folder)}
    return subprocess.run(
        [*namespace, COMMAND, *words],
        cwd=folder,
        env=environment,
        input=stdin,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
    )


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (
            "-t --auth none --port 0 --sandbox none --audit on",
            "/keys/audit: no space left on device: free some space\n",
        ),
        ("user add ada", "can't grow, the disk is full: free some space; nothing was changed"),
        ("secret set KEY", "/keys/mount-secrets: no space left on device"),
    ],
)
def test_a_full_disk_is_named_without_the_words_of_a_library(tmp_path: Path, words: str, said: str) -> None:
    require_for(words)
    told = run_without_room(tmp_path, *words.split(), stdin="a long enough password")
    assert told.returncode in (1, 2) and said in told.stderr, told
    assert "None" not in told.stderr and "https://" not in told.stderr


def test_a_restore_says_how_much_stays_free(tmp_path: Path) -> None:
    environment = {"PATH": os.environ["PATH"], "HOME": str(tmp_path)}
    for words, stdin in (("user add ada", "a long enough password"), ("backup b", "")):
        command = [COMMAND, *words.split(), "--state", "used"]
        subprocess.run(command, cwd=tmp_path, env=environment, input=stdin, text=True, check=True)
    told = run_without_room(tmp_path, "restore", "b", "--replace")
    assert told.returncode == 1 and "and 16 MiB that stay free: free some space" in told.stderr, told

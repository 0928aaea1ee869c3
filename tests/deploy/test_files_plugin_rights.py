"""The file tools keep the owner, the mode and the attributes of what they change, and give nobody new rights."""

import os
import stat
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.clients.raw_client import ROOT, Server
from tests.escape.ground import NOBODY

Start = Callable[..., Server]
EDITING = """
import os, sys
user, plugins, folder, name = sys.argv[1:]
sys.path.insert(0, plugins)
from files.changing import edit
from files.paths import FileError, Places
os.setgroups([]), os.setgid(int(user)), os.setuid(int(user))
try:
    print(edit(Places(folder, None, None), name, "one", "two", False)["text"])
except FileError as error:
    print(error)
"""


@pytest.mark.programs("setfacl")
def test_a_changed_file_keeps_who_may_do_what(start: Start, tmp_path: Path) -> None:
    server, work = start("-p", "builtin:files"), tmp_path / "work"
    folder = work / "rights"
    folder.mkdir()
    for name in ("listed", "plain", "marked", "linked"):
        (folder / name).write_text("one\n")
        (folder / name).chmod(0o4640)
    subprocess.run(["setfacl", "-m", "user:1234:rw,group:1235:r", folder / "listed"], check=True)
    subprocess.run(["setfacl", "-d", "-m", "user:1236:rwx", folder], check=True)  # of files that are made from now on
    os.setxattr(folder / "marked", "user.note", b"mine")
    os.link(folder / "linked", folder / "link")
    before = {name: rights(folder / name) for name in ("listed", "plain", "marked", "linked")}
    for name in before:
        text = server.text("Edit", {"file_path": f"rights/{name}", "old_string": "one", "new_string": "two"})
        assert ("its 1 other hard link now has the old content" in text) == (name == "linked")
    assert {name: rights(folder / name) for name in before} == before
    assert (folder / "link").read_text() == "one\n"
    server.text("Write", {"file_path": "rights/new", "content": "x"})
    assert "user:1236:rwx" in rights(folder / "new")[1]


def rights(file: Path) -> tuple[int, str, object]:
    shown = subprocess.run(["getfacl", "-cnp", file], capture_output=True, text=True, check=True).stdout
    noted = {name: os.getxattr(file, name) for name in os.listxattr(file) if name.startswith("user.")}
    return stat.S_IMODE(file.stat().st_mode) & 0o777, shown, noted


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
def test_a_person_changes_no_file_that_is_write_protected_or_another_ones() -> None:
    with tempfile.TemporaryDirectory(prefix="toolgate-rights-", dir="/tmp") as made:
        folder = Path(made)
        folder.chmod(0o777)
        for name, owner, group, mode in (
            ("protected", NOBODY, NOBODY, 0o444),
            ("shared", 0, NOBODY, 0o664),
            ("secret", NOBODY, 4242, 0o640),
            ("excluding", NOBODY, 4242, 0o604),
        ):
            (folder / name).write_text("one\n")
            os.chown(folder / name, owner, group)
            (folder / name).chmod(mode)
        told = {name: changed_by_user(folder / name) for name in ("protected", "shared", "secret", "excluding")}
        assert told == {
            "protected": "it is write-protected: if it is to be changed, chmod it in Bash first",
            "shared": "it belongs to another user, so it can't be replaced: use Bash",
            "secret": "edited secret: line 1",
            "excluding": "edited excluding: line 1",
        }
        for name in ("secret", "excluding"):  # neither group may read anything new
            found = (folder / name).stat()
            assert (found.st_gid, stat.S_IMODE(found.st_mode)) == (NOBODY, 0o600)
        assert list(folder.glob(".tmp-*")) == []


def changed_by_user(file: Path) -> str:
    """Return what Edit says if its process runs as NOBODY."""
    words = [sys.executable, "-c", EDITING, str(NOBODY), str(ROOT / "plugins"), str(file.parent), file.name]
    return subprocess.run(words, capture_output=True, text=True, check=True).stdout.strip()

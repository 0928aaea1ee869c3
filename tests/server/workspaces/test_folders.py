"""Folders with hostile contents: removed, packed and unpacked, whatever is in them."""

import errno
import gzip
import io
import os
import socket
import stat
import subprocess
import sys
import tarfile
import threading
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.clients.raw_client import PATIENCE
from toolgate.server.base.watch import FileChanges
from toolgate.server.workspaces import archive, sparse_files
from toolgate.server.workspaces.archive import ArchiveError, pack_folder
from toolgate.server.workspaces.folders import PrincipalFolders
from toolgate.server.workspaces.local_workspaces import LocalWorkspaces
from toolgate.server.workspaces.unarchive import unpack_archive
from toolgate.tools.workspace.files import rmtree, safe_walk
from toolgate.tools.workspace.limits import Limits
from toolgate.tools.workspace.output.spool import remove_cwd_files
from toolgate.tools.workspace.processes.start_queue import StartQueue
from toolgate.tools.workspace.sandbox.environment import SandboxedEnvironment

ODD = os.fsdecode(b"two\nlines and \xff\xfe, no UTF-8")


def nested(folder: Path, levels: int) -> None:
    """Make nested folders, deeper than any path, with a file in the last one."""
    here = os.open(folder, safe_walk.FOLDER)
    for _ in range(levels):
        os.mkdir("d", dir_fd=here)
        there = os.open("d", safe_walk.FOLDER, dir_fd=here)
        os.close(here)
        here = there
    os.close(os.open("end", os.O_CREAT | os.O_WRONLY, dir_fd=here))
    os.close(here)


def depth(folder: Path) -> int:
    """Return how deep the folders go."""
    here, levels = os.open(folder, safe_walk.FOLDER), 0
    while os.listdir(here) == ["d"]:
        there = os.open("d", safe_walk.FOLDER, dir_fd=here)
        os.close(here)
        here, levels = there, levels + 1
    assert os.listdir(here) == ["end"]
    os.close(here)
    return levels


def hostile(folder: Path, outside: Path) -> None:
    """Make a folder with every kind of entry; `outside` is an unrelated folder."""
    folder.mkdir()
    (folder / "plain").write_text("text")
    (folder / "empty").mkdir()
    (folder / ODD).write_bytes(b"\0\xff")
    (folder / "etc").symlink_to("/etc")
    (folder / "out").symlink_to(outside)
    (folder / "gone").symlink_to(ODD)
    os.mkfifo(folder / "pipe")
    os.link(folder / "plain", folder / "again")
    (folder / "below").mkdir()
    os.link(folder / "plain", folder / "below" / "once more")
    (folder / "below" / "program").write_text("#!")
    (folder / "below" / "program").chmod(0o4755)
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(folder / "s"))
    (folder / "closed").mkdir()
    (folder / "closed" / "inside").write_text("kept")
    (folder / "closed" / "inside").chmod(0)
    (folder / "closed" / "also").mkdir()
    (folder / "closed" / "also").chmod(0)
    (folder / "closed").chmod(0)


@pytest.fixture
def outside(tmp_path: Path) -> Path:
    folder = tmp_path / "outside"
    folder.mkdir()
    (folder / "precious").write_text("precious")
    return folder


def left(folder: Path) -> list[str]:
    return sorted(entry.name for entry in folder.iterdir())


def test_whatever_is_in_a_folder_goes_and_nothing_else(tmp_path: Path, outside: Path) -> None:
    hostile(tmp_path / "it", outside)
    rmtree.remove_tree(tmp_path / "it")
    assert left(tmp_path) == ["outside"] and (outside / "precious").read_text() == "precious"
    assert Path("/etc/passwd").exists()


@pytest.mark.skipif(os.getuid() != 0, reason="only root can become somebody else")
def test_a_hostile_folder_is_removed_without_being_root(open_path: Path) -> None:
    """Permissions don't stop root, so this runs as another user."""
    script = (
        "import gzip, os, sys, pathlib; from tests.server.workspaces.test_folders import *; os.umask(0o077)\n"
        "base = pathlib.Path(sys.argv[1]); os.setgroups([]); os.setgid(65534); os.setuid(65534)\n"
        "outside = base / 'outside'; outside.mkdir(); (outside / 'precious').touch()\n"
        "hostile(base / 'it', outside); print(pack_folder(base / 'it', base / 'a').omitted)\n"
        "rmtree.remove_tree(base / 'it');"
        "unpack_archive(base / 'a', base / 'back'); print(left(base), left(base / 'back'))\n"
    )
    os.chown(open_path, 65534, 65534)
    done = subprocess.run(
        [sys.executable, "-c", script, str(open_path)], capture_output=True, text=True, timeout=PATIENCE, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "['a', 'back', 'outside']" in done.stdout and "'closed'" in done.stdout


def test_a_link_is_not_a_folder_to_be_removed(tmp_path: Path, outside: Path) -> None:
    (tmp_path / "it").symlink_to(outside)
    with pytest.raises(NotADirectoryError):
        rmtree.remove_tree(tmp_path / "it")
    assert left(tmp_path) == ["it", "outside"] and left(outside) == ["precious"]


@pytest.mark.parametrize("deep", [1_200, pytest.param(3_000, marks=pytest.mark.soak)])  # more than Python or fts nests
def test_folders_thousands_deep_are_removed_packed_and_unpacked(tmp_path: Path, deep: int) -> None:
    folder = tmp_path / "it"
    folder.mkdir()
    nested(folder, deep)
    packed = pack_folder(folder, tmp_path / "archive")
    assert packed.entries == deep + 1
    rmtree.remove_tree(folder)
    unpack_archive(tmp_path / "archive", folder)
    assert depth(folder) == deep
    rmtree.remove_tree(folder)
    assert left(tmp_path) == ["archive"]


def test_a_packed_folder_is_unpacked_unchanged(tmp_path: Path, outside: Path) -> None:
    folder, back = tmp_path / "it", tmp_path / "back"
    hostile(folder, outside)
    packed = pack_folder(folder, tmp_path / "archive")
    assert packed.omitted == 1  # the socket
    assert stat.S_IMODE((tmp_path / "archive").stat().st_mode) == 0o600
    unpack_archive(tmp_path / "archive", back)
    assert left(back) == sorted({*left(folder)} - {"s"})
    assert (back / "plain").read_text() == "text" and (back / ODD).read_bytes() == b"\0\xff"
    assert (back / "etc").readlink() == Path("/etc") and (back / "gone").readlink() == Path(ODD)
    assert stat.S_ISFIFO((back / "pipe").lstat().st_mode)
    assert (back / "plain").stat().st_nlink == 3 and (back / "below" / "once more").read_text() == "text"
    assert stat.S_IMODE((back / "below" / "program").stat().st_mode) & 0o7000 == 0
    assert (back / "closed" / "also").is_dir()
    (back / "closed" / "inside").chmod(0o600)
    assert (back / "closed" / "inside").read_text() == "kept"


@pytest.mark.skipif(os.getuid() != 0, reason="needs a file of somebody else's")
def test_a_hard_link_to_another_users_file_is_not_packed(tmp_path: Path, outside: Path) -> None:
    folder = tmp_path / "it"
    folder.mkdir()
    os.chown(folder, 65534, 65534)
    os.link(outside / "precious", folder / "mine")
    packed = pack_folder(folder, tmp_path / "archive")
    assert (packed.entries, packed.omitted) == (0, 1)
    assert b"precious" not in (tmp_path / "archive").read_bytes()
    rmtree.remove_tree(folder)
    assert (outside / "precious").read_text() == "precious"


def test_too_much_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "it").mkdir()
    monkeypatch.setattr(archive, "MAX_ENTRIES", 2)
    for number in range(3):
        (tmp_path / "it" / str(number)).touch()
    with pytest.raises(ArchiveError, match="too large"):
        pack_folder(tmp_path / "it", tmp_path / "another")


@pytest.mark.parametrize("name", ["../out", "/out", "a/../../out", "a//out", "."])
def test_an_archive_that_was_tampered_with_leads_nowhere_else(tmp_path: Path, name: str) -> None:
    with tarfile.open(tmp_path / "archive", "w:gz") as tar:
        tar.addfile(tarfile.TarInfo(name))
    with pytest.raises(ArchiveError, match="out of the folder"):
        unpack_archive(tmp_path / "archive", tmp_path / "back")
    assert left(tmp_path) == ["archive", "back"]


def test_nothing_is_made_through_a_link_of_the_archive(tmp_path: Path, outside: Path) -> None:
    with tarfile.open(tmp_path / "archive", "w:gz") as tar:
        link = tarfile.TarInfo("way")
        link.type, link.linkname = tarfile.SYMTYPE, str(outside)
        tar.addfile(link)
        tar.addfile(tarfile.TarInfo("way/planted"))
    with pytest.raises(OSError, match="way") as refused:
        unpack_archive(tmp_path / "archive", tmp_path / "back")
    assert refused.value.errno in (errno.ELOOP, errno.ENOTDIR)
    assert left(outside) == ["precious"]


@pytest.mark.parametrize("data", [b"", b"no archive", b"\x1f\x8b\x08\0\0\0\0\0"])
def test_a_file_that_is_no_archive_is_reported_as_damaged(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "archive").write_bytes(data)
    with pytest.raises(OSError, match="damaged"):
        unpack_archive(tmp_path / "archive", tmp_path / "back")


def pax(**headers: str) -> tarfile.TarInfo:
    info = tarfile.TarInfo("big")
    info.pax_headers = {f"GNU.sparse.{name}": value for name, value in headers.items()}
    return info


def without_end(version: str) -> bytes:
    """Return the head of a file with an endless list of holes, in one of the formats."""
    if version == "old":
        info = tarfile.TarInfo("big")
        info.type = tarfile.GNUTYPE_SPARSE
        head = bytearray(info.tobuf(tarfile.GNU_FORMAT))
        head[482] = 1  # more of the list follows
        head[148:156] = b"%06o\0 " % tarfile.calc_chksums(head)[0]
        return bytes(head)
    headers = {"0.0": {"size": "1"}, "0.1": {"map": "0,0"}, "1.0": {"major": "1", "minor": "0"}}
    return pax(**headers[version]).tobuf(tarfile.PAX_FORMAT) + b"9999999999\n"


@pytest.mark.parametrize("version", ["old", "0.0", "0.1", "1.0"])
def test_a_list_of_holes_is_not_read(tmp_path: Path, version: str) -> None:
    with gzip.open(tmp_path / "archive", "wb") as file:
        file.write(without_end(version) + b"1\n" * 2**16)
    with pytest.raises(ArchiveError, match="has no end" if version == "1.0" else "never packed"):
        unpack_archive(tmp_path / "archive", tmp_path / "back")


def test_a_time_that_is_none_is_damage(tmp_path: Path) -> None:
    info = tarfile.TarInfo("a")
    info.pax_headers = {"mtime": "inf"}
    with tarfile.open(tmp_path / "archive", "w:gz", format=tarfile.PAX_FORMAT) as tar:
        tar.addfile(info)
    with pytest.raises(ArchiveError, match="damaged"):
        unpack_archive(tmp_path / "archive", tmp_path / "back")


def test_a_hole_comes_back_as_a_hole(tmp_path: Path) -> None:
    (tmp_path / "it").mkdir()
    with (tmp_path / "it" / "sparse").open("wb") as file:
        file.seek(2**24 + 5)
        file.write(b"middle")
        file.truncate(2**25 + 3)
    (tmp_path / "it" / "zeros").write_bytes(bytes(10))
    pack_folder(tmp_path / "it", tmp_path / "archive")
    unpack_archive(tmp_path / "archive", tmp_path / "back")
    for name in ("sparse", "zeros"):
        assert (tmp_path / "back" / name).read_bytes() == (tmp_path / "it" / name).read_bytes()
    assert (tmp_path / "back" / "sparse").stat().st_blocks * 512 < 2**20


def test_a_process_that_writes_meanwhile_delays_removal_for_a_limited_time(tmp_path: Path) -> None:
    folder, stop = tmp_path / "it", threading.Event()
    folder.mkdir()
    here = os.open(folder, safe_walk.FOLDER)

    def write() -> None:
        number = 0
        while not stop.is_set():
            try:
                os.close(os.open(f"f{number}", os.O_CREAT | os.O_WRONLY, dir_fd=here))
            except FileNotFoundError:  # the folder is gone
                return
            number += 1

    writer = threading.Thread(target=write)
    writer.start()
    try:
        rmtree.remove_tree(folder)
    except OSError as error:
        assert isinstance(error, rmtree.FolderBusyError) or error.errno == errno.ENOTEMPTY
    finally:
        stop.set()
        writer.join(PATIENCE)
        os.close(here)
    for stage in tmp_path.glob(f"{rmtree.STAGE}*"):  # with nobody there any more, the rest goes
        rmtree.remove_stage(stage)
    assert left(tmp_path) == []


# Links in the place of folders of ours


def test_a_link_is_not_put_back_as_a_workspace(tmp_path: Path, outside: Path) -> None:
    held = PrincipalFolders(tmp_path)
    aside = tmp_path / "leaving" / "local-20260101T000000Z"
    aside.mkdir(parents=True)
    held.workspaces.mkdir()
    (aside / "workspace").symlink_to(outside)
    with pytest.raises(NotADirectoryError, match="is not a folder"):
        held.put_back(aside)
    assert left(held.workspaces) == [] and left(outside) == ["precious"]
    (aside / "workspace").unlink()
    held.put_back(aside)  # as before, nothing


def test_a_link_is_no_workspace(tmp_path: Path, outside: Path) -> None:
    (tmp_path / "workspaces").mkdir()
    (tmp_path / "workspaces" / "ada").symlink_to(outside)
    confinement: Any = None  # nobody gets so far
    with pytest.raises(NotADirectoryError, match="ada is not a folder"):
        LocalWorkspaces(tmp_path, None, {}, confinement, FileChanges(), lambda _, run: None).get_or_open("ada")


def test_nothing_is_removed_through_a_link(tmp_path: Path, outside: Path) -> None:
    sandbox: Any = SimpleNamespace(level="uid", limits=Limits(), uids=None)
    parts: Any = dict.fromkeys(("server_runner", "make_proxy", "make_group", "close_group", "idle_sandboxes"))
    environment = SandboxedEnvironment(
        sandbox, tmp_path, tmp_path / "spool", is_exclusive=True, memory=False, starts=StartQueue(), **parts
    )
    (tmp_path / "spool").mkdir()
    places = tmp_path / "spool" / "places"
    places.symlink_to(outside)
    remove_cwd_files(places, time.time() + 60)
    assert left(outside) == ["precious"]
    environment._make_folders()
    assert stat.S_ISDIR(places.lstat().st_mode) and left(outside) == ["precious"]
    (places / "1").touch()
    remove_cwd_files(places, time.time() + 60)
    assert left(places) == []


def sparse(path: Path, size: int, *data: tuple[int, bytes]) -> None:
    with path.open("wb") as file:
        for place, what in data:
            file.seek(place)
            file.write(what)
        file.truncate(size)


def blocks(folder: Path) -> int:
    """Return the bytes on disk."""
    return sum(path.stat().st_blocks * 512 for path in folder.iterdir())


def test_a_file_of_holes_is_packed_and_unpacked_at_the_cost_of_its_data(tmp_path: Path) -> None:
    folder, block = tmp_path / "it", b"d" * 4096
    folder.mkdir()
    for number in range(34):
        sparse(folder / f"hole-{number}", 2**31)
    sparse(folder / "begins", 2**40, (0, block))
    sparse(folder / ODD, 2**36 + 5, (2**20, block), (2**20 + 8192, block), (2**35, block), (2**36, b"end"))
    sparse(folder / ("long" * 60), 2**33, (2**32, block))
    os.link(folder / "begins", folder / "begins-too")
    began = time.process_time()
    packed = pack_folder(folder, tmp_path / "archive")
    unpack_archive(tmp_path / "archive", tmp_path / "back")
    assert time.process_time() - began < 5.0  # to read that much takes an hour
    assert packed.bytes < 2**20 and blocks(tmp_path / "back") <= blocks(folder) + 2**16
    for name in os.listdir(folder):
        with (folder / name).open("rb") as one, (tmp_path / "back" / name).open("rb") as other:
            assert os.fstat(one.fileno()).st_size == os.fstat(other.fileno()).st_size
            for place in (0, 4096, 2**20 - 1, 2**20 + 8192, 2**32 - 7, 2**35 - 5, 2**36 - 4):
                assert os.pread(one.fileno(), 5000, place) == os.pread(other.fileno(), 5000, place), (name, place)
    (tmp_path / "tarred").mkdir()
    subprocess.run(["tar", "xzf", tmp_path / "archive", "-C", tmp_path / "tarred"], check=True)
    assert sorted(os.listdir(tmp_path / "tarred")) == sorted(os.listdir(folder))
    assert {path.stat().st_size for path in (tmp_path / "tarred").iterdir()} == {
        path.stat().st_size for path in folder.iterdir()
    }
    assert blocks(tmp_path / "tarred") <= blocks(folder) + 2**16


def test_a_file_with_too_many_holes_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sparse_files, "MAX_PIECES", 10)
    (tmp_path / "it").mkdir()
    sparse(tmp_path / "it" / "swiss", 2**24, *((number * 2**20, b"x") for number in range(11)))
    with pytest.raises(OSError, match="too many holes"):
        pack_folder(tmp_path / "it", tmp_path / "archive")


def test_too_much_is_refused_before_it_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "it").mkdir()
    (tmp_path / "it" / "one").write_bytes(b"1" * 2**20)
    os.link(tmp_path / "it" / "one", tmp_path / "it" / "again")
    monkeypatch.setattr(archive, "MAX_BYTES", 2**20)
    pack_folder(tmp_path / "it", tmp_path / "archive")
    (tmp_path / "it" / "another").write_bytes(b"1")
    with pytest.raises(ArchiveError, match="too large"):
        pack_folder(tmp_path / "it", tmp_path / "second")
    assert not (tmp_path / "second").exists()


def listed(*lines: str, data: bytes = b"", size: int = 2**20) -> bytes:
    """Return an archive of a file with that list of holes."""
    text = "".join(f"{line}\n" for line in lines).encode()
    text = text.ljust(-(-len(text) // 512) * 512, b"\0") + data
    info = pax(major="1", minor="0", realsize=str(size))
    info.size = len(text)
    raw = io.BytesIO()
    with tarfile.open(fileobj=raw, mode="w:gz", format=tarfile.PAX_FORMAT) as tar:
        tar.addfile(info, io.BytesIO(text))
        tar.addfile(tarfile.TarInfo("next"))
    return raw.getvalue()


LISTS = {
    "that does not end": (["1000"], b"", 2**20, "has no end"),
    "without end": (["9" * 15], b"", 2**20, "too long"),
    "of no numbers": (["one", "0", "1"], b"", 2**20, "not a number"),
    "of long numbers": (["1" * 600], b"", 2**20, "not a number|has no end"),
    "below nothing": (["1", "-5", "1"], b"x", 2**20, "not a number"),
    "that goes back": (["2", "5", "1", "0", "1"], b"xy", 2**20, "not in order"),
    "beyond the end": (["1", "1048576", "1"], b"x", 2**20, "not in order"),
    "of more data than there is": (["1", "0", "4"], b"x", 2**20, "has another size"),
    "of less data than there is": (["1", "0", "1"], b"xyz", 2**20, "has another size"),
    "of a file below nothing": (["0"], b"", -1, "never packed|too long"),
    "of a file without end": (["1", "0", "1"], b"x", 2**60, "too long"),
}


@pytest.mark.parametrize("what", LISTS)
def test_a_list_of_holes_that_makes_no_sense_is_damage(tmp_path: Path, what: str) -> None:
    lines, data, size, said = LISTS[what]
    (tmp_path / "archive").write_bytes(listed(*lines, data=data, size=size))
    with pytest.raises(ArchiveError, match=said):
        unpack_archive(tmp_path / "archive", tmp_path / "back")


def test_a_file_with_holes_says_its_size_in_one_way_only(tmp_path: Path) -> None:
    info = pax(major="1", minor="0", realsize="512")
    info.pax_headers["size"] = "512"  # it would be taken for where the next header is
    info.size = 512
    with tarfile.open(tmp_path / "archive", mode="w:gz", format=tarfile.PAX_FORMAT) as tar:
        tar.addfile(info, io.BytesIO(b"0\n".ljust(512, b"\0")))
    with pytest.raises(ArchiveError, match="never packed"):
        unpack_archive(tmp_path / "archive", tmp_path / "back")


def test_an_entry_after_a_file_with_holes_is_found(tmp_path: Path) -> None:
    (tmp_path / "archive").write_bytes(listed("2", "5", "1", "1048576", "0", data=b"x"))
    unpack_archive(tmp_path / "archive", tmp_path / "back")
    assert sorted(os.listdir(tmp_path / "back")) == ["big", "next"]
    assert (tmp_path / "back" / "big").read_bytes() == b"\0" * 5 + b"x" + b"\0" * (2**20 - 6)

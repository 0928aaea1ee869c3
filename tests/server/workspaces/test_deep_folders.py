"""Folders nested deeper than any path, and hard links in them: packed by their names, and unpacked."""

import os
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.clients.raw_client import PATIENCE
from toolgate.server.workspaces import folder_names
from toolgate.server.workspaces.archive import ArchiveError, pack_folder
from toolgate.server.workspaces.unarchive import unpack_archive
from toolgate.tools.workspace.files.rmtree import remove_tree
from toolgate.tools.workspace.files.safe_walk import FOLDER, walk_folders

LONG = "x" * 250
WORK = 5 * PATIENCE  # seconds to pack and unpack: 54 on a busy machine
ROOM = 64  # MiB of memory above that of the process before
MEASURE = """
import resource, sys
from pathlib import Path
from toolgate.server.workspaces.archive import pack_folder
from toolgate.server.workspaces.unarchive import unpack_archive
def peak(): return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
base, before = Path(sys.argv[1]), peak()
pack_folder(base / "it", base / "archive"); print(peak() - before)
unpack_archive(base / "archive", base / "back"); print(peak() - before)
"""


@pytest.fixture(autouse=True)
def removed_folders(tmp_path: Path) -> Iterator[None]:
    """Remove what pytest can't, as it is too deep."""
    yield
    for name in ("it", "back"):
        if (tmp_path / name).exists():
            remove_tree(tmp_path / name)


def make_deep(folder: Path, levels: int, *, links_in_each: int = 0, links_at_end: int = 0) -> None:
    """Make nested folders with long names, and pairs of hard links in them."""
    folder.mkdir()
    here = os.open(folder, FOLDER)
    for _ in range(levels):
        make_links(here, links_in_each)
        os.mkdir(LONG, dir_fd=here)
        there = os.open(LONG, FOLDER, dir_fd=here)
        os.close(here)
        here = there
    make_links(here, links_at_end)
    os.close(here)


def make_links(here: int, count: int) -> None:
    for number in range(count):
        os.close(os.open(f"f{number}", os.O_CREAT | os.O_WRONLY, dir_fd=here))
        os.link(f"f{number}", f"g{number}", src_dir_fd=here, dst_dir_fd=here)


def list_shape(folder: Path) -> list[dict[str, int]]:
    """Return the names in each folder on the way down, and how many names each file has."""
    return [
        {name: os.stat(name, dir_fd=here, follow_symlinks=False).st_nlink for name in sorted(os.listdir(here))}
        for here, _ in walk_folders(folder)
    ]


@pytest.mark.brief("one in each folder")
@pytest.mark.parametrize(
    "shape",
    [
        pytest.param((1_200, 1, 0), id="one in each folder"),
        pytest.param((600, 0, 1_200), id="all in the last"),
        pytest.param((4_000, 1, 0), id="one in each of more folders", marks=pytest.mark.soak),
        pytest.param((1_000, 0, 4_000), id="more in the last", marks=pytest.mark.soak),
    ],
)
def test_thousands_of_links_in_deep_folders_take_little_memory(tmp_path: Path, shape: tuple[int, int, int]) -> None:
    levels, each, last = shape
    make_deep(tmp_path / "it", levels, links_in_each=each, links_at_end=last)
    words = [sys.executable, "-c", MEASURE, str(tmp_path)]
    done = subprocess.run(words, capture_output=True, text=True, timeout=WORK, check=False)
    assert done.returncode == 0, done.stderr
    assert all(int(grown) < ROOM for grown in done.stdout.split()), done.stdout
    assert (
        tmp_path / "archive"
    ).stat().st_size < 2**20  # of 4,000 links whole paths would take gigabytes, packed 13 MiB
    assert list_shape(tmp_path / "back") == list_shape(tmp_path / "it")


def test_a_link_between_two_deep_folders_comes_back(tmp_path: Path) -> None:
    make_deep(tmp_path / "it", 40)
    (tmp_path / "it" / "file").write_text("precious")
    for here, length in walk_folders(tmp_path / "it"):
        if length and length % (len(LONG) + 1) == 0:  # one on the way down, not beside it
            os.link(tmp_path / "it" / "file", "file", dst_dir_fd=here)
            os.mkdir("beside", dir_fd=here)
            os.close(os.open("beside/own", os.O_CREAT | os.O_WRONLY, dir_fd=here))
    pack_folder(tmp_path / "it", tmp_path / "archive")
    unpack_archive(tmp_path / "archive", tmp_path / "back")
    assert (tmp_path / "back" / "file").read_text() == "precious" and (tmp_path / "back" / "file").stat().st_nlink == 41
    assert sorted(map(str, list_shape(tmp_path / "back"))) == sorted(map(str, list_shape(tmp_path / "it")))


def test_an_archive_with_whole_paths_is_unpacked(tmp_path: Path) -> None:
    """Toolgate 0.1 wrote them whole, however long."""
    path = ""
    with tarfile.open(tmp_path / "archive", "w:gz", format=tarfile.PAX_FORMAT) as tar:
        for _ in range(30):
            path += LONG
            folder = tarfile.TarInfo(path)
            folder.type, folder.mode = tarfile.DIRTYPE, 0o755
            tar.addfile(folder)
            path += "/"
        tar.addfile(tarfile.TarInfo(f"{path}file"))
        link = tarfile.TarInfo(f"{path}link")
        link.type, link.linkname = tarfile.LNKTYPE, f"{path}file"
        tar.addfile(link)
    unpack_archive(tmp_path / "archive", tmp_path / "back")
    assert list_shape(tmp_path / "back")[-1] == {"file": 2, "link": 2}


@pytest.mark.parametrize("header", [folder_names.IN_FOLDER, folder_names.TARGET_FOLDER, folder_names.OWN_NUMBER])
@pytest.mark.parametrize("number", ["7", "-1", "one", "9" * 5_000])
def test_a_number_of_no_folder_is_damage(tmp_path: Path, header: str, number: str) -> None:
    info = tarfile.TarInfo("a")
    info.pax_headers = {header: number}
    info.type = tarfile.LNKTYPE if header == folder_names.TARGET_FOLDER else tarfile.DIRTYPE
    info.linkname = "b" if header == folder_names.TARGET_FOLDER else ""
    with tarfile.open(tmp_path / "archive", "w:gz", format=tarfile.PAX_FORMAT) as tar:
        tar.addfile(info)
    if header == folder_names.OWN_NUMBER and number in ("7", "-1"):
        unpack_archive(tmp_path / "archive", tmp_path / "back")  # a number is only a name
        assert os.listdir(tmp_path / "back") == ["a"]
        return
    with pytest.raises(ArchiveError, match="damaged"):
        unpack_archive(tmp_path / "archive", tmp_path / "back")
    assert not list((tmp_path / "back").iterdir())

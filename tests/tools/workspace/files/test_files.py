"""Reading and writing files: allowed and refused paths."""

import ctypes
import os
import resource
import socket
import stat
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

from tests.tools.shell_commands import (
    on_workspace,
)
from toolgate.tools.api.errors import ToolError
from toolgate.tools.workspace.files import access as files
from toolgate.tools.workspace.files.open_file import PIECE
from toolgate.tools.workspace.local_workspace import LocalWorkspace


def test_a_file_inside_the_root_is_read(tmp_path: Path) -> None:
    async def body(mine: LocalWorkspace) -> None:
        path = mine.root / "file"
        path.write_bytes(b"x" * 1000)
        (mine.root / "link").symlink_to("file")
        assert await mine.read_file(str(path), 1000, anywhere=False) == b"x" * 1000
        assert await mine.read_file(str(mine.root / "link"), 1000, anywhere=False) == b"x" * 1000
        (tmp_path / "out").write_text("out")
        assert await mine.read_file(str(tmp_path / "out"), 10, anywhere=True) == b"out"

    on_workspace(body, tmp_path)


@pytest.mark.parametrize(
    ("asked", "actual", "hint"),
    [
        ("Shot 6.30.00 PM.png", "Shot 6.30.00\u202fPM.png", " It has U+202F NARROW NO-BREAK SPACE: in Bash, a ? in"),
        ("a b.png", "a\u00a0b.png", " It has U+00A0 NO-BREAK SPACE"),
        ("a b.png", "a  b.png", ""),
        ("caf\u00e9.png", "cafe\u0301.png", " It has U+0301 COMBINING ACUTE ACCENT"),
        ("cafe\u0301.png", "caf\u00e9.png", " It has U+00E9 LATIN SMALL LETTER E WITH ACUTE"),
        ("it's.png", "it\u2019s.png", " It has U+2019 RIGHT SINGLE QUOTATION MARK"),
        ('"a".png', "\u201ca\u201d.png", " It has U+201C LEFT DOUBLE QUOTATION MARK, U+201D"),
        ("it\u2019s.png", "it's.png", ""),
        ("1-2.png", "1\u20132.png", " It has U+2013 EN DASH"),
        ("ab.png", "a\u200bb.png", " It has U+200B ZERO WIDTH SPACE"),
        ("image.PNG", "Image.png", ""),
        ("\uff21.png", "A.png", ""),
    ],
)
@pytest.mark.parametrize("anywhere", [True, False])
def test_a_missing_file_is_named_by_the_path_that_looks_alike(
    tmp_path: Path, asked: str, actual: str, hint: str, anywhere: bool
) -> None:
    async def body(mine: LocalWorkspace) -> None:
        for folder in (mine.root, mine.root / actual.removesuffix(".png") / "in"):
            folder.mkdir(parents=True, exist_ok=True)
            (folder / actual).write_bytes(b"x")
        inner = f"{asked[:-4]}/in/{asked}"
        for missing, there in ((asked, actual), (inner, f"{actual.removesuffix('.png')}/in/{actual}")):
            place = os.path.realpath(mine.root)
            for read in (mine.read_file, mine.open_file):
                with pytest.raises(ToolError) as raised:
                    await read(f"{place}/{missing}", 10, anywhere=anywhere)
                assert f"{missing} does not exist; did you mean {place}/{there}?{hint}" in raised.value.text

    on_workspace(body, tmp_path)


def test_no_path_that_the_caller_may_not_read_is_named(tmp_path: Path) -> None:
    async def body(mine: LocalWorkspace) -> None:
        (tmp_path / "out").mkdir()
        (tmp_path / "out" / "a\u00a0b").write_bytes(b"x")
        (mine.root / "c\u00a0d").symlink_to(tmp_path / "out")
        (mine.root / "e\u00a0f").symlink_to(tmp_path / "out" / "a\u00a0b")
        for missing in ("c d/a b", "e f", "nothing", "c\u00a0d/nothing"):
            with pytest.raises(ToolError) as raised:
                await mine.read_file(f"{mine.root}/{missing}", 10, anywhere=False)
            assert "did you mean" not in raised.value.text

    on_workspace(body, tmp_path)


def test_a_file_that_grows_while_it_is_read_is_read_as_far_as_it_was(tmp_path: Path) -> None:
    async def body(mine: LocalWorkspace) -> None:
        path = mine.root / "log"
        path.write_bytes(b"a" * PIECE + b"b")
        data = b""
        with await mine.open_file(str(path), 2 * PIECE, anywhere=False) as file:
            async for piece in file.pieces():
                data += piece
                with path.open("ab") as log:
                    log.write(b"c")
        assert data == b"a" * PIECE + b"b"

    on_workspace(body, tmp_path)


@pytest.mark.parametrize("verb", ["read", "look", "entries"])
def test_a_link_switched_during_a_read_does_not_reach_the_private_folder(
    tmp_path: Path, verb: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = Path(os.path.realpath(tmp_path))
    for name in ("state", "public"):
        (root / name / "inner").mkdir(parents=True)
    (root / "state" / "key").write_text("secret")
    (root / "public" / "key").write_text("mine")
    opened = os.open

    def race(path: str, flags: int, *mode: int, **how: int) -> int:
        """Swap the resolved folder for a link during the open."""
        (root / "public").rename(root / "was")
        (root / "public").symlink_to(root / "state")
        descriptor = opened(path, flags, *mode, **how)
        (root / "public").unlink()
        (root / "was").rename(root / "public")  # swapped back before the second resolution
        return descriptor

    monkeypatch.setattr("toolgate.tools.workspace.files.access.os.open", race)
    calls: dict[str, Callable[[], object]] = {
        "read": lambda: files.read(str(root / "public" / "key"), 10, root, root / "state"),
        "look": lambda: files.stat_path(str(root / "public" / "key"), root, root / "state"),
        "entries": lambda: files.entries(str(root / "public" / "inner"), root, 10, root / "state"),
    }
    with pytest.raises(ToolError, match=r"can't be read|does not exist|is not a folder"):
        calls[verb]()


SWITCHES = """
import ctypes, os, sys
rename = ctypes.CDLL(None).renameat2
print("up", flush=True)
while os.getppid() == int(sys.argv[3]):
    rename(-100, sys.argv[1].encode(), -100, sys.argv[2].encode(), 2)  # RENAME_EXCHANGE
"""
IN_OPEN = 0x20


@pytest.mark.skipif(sys.platform != "linux", reason="inotify and renameat2 are Linux's")
@pytest.mark.parametrize("verb", ["read", "look", "read_below"])
def test_nothing_outside_is_opened_while_a_file_and_a_link_change_places(tmp_path: Path, verb: str) -> None:
    """Merely opening a device has effects: the file outside here records each open."""
    root = Path(os.path.realpath(tmp_path)) / "root"
    root.mkdir()
    os.mkfifo(tmp_path / "outside")
    (root / "a").write_text("mine")
    (root / "b").symlink_to(tmp_path / "outside")
    libc = ctypes.CDLL(None)
    watch = libc.inotify_init1(os.O_NONBLOCK)
    assert libc.inotify_add_watch(watch, bytes(tmp_path / "outside"), IN_OPEN) >= 0
    calls: dict[str, Callable[[], object]] = {
        "read": lambda: files.read(str(root / "a"), 10, root),
        "look": lambda: files.stat_path(str(root / "a"), root),
        "read_below": lambda: files.read_below(root, "a", 10),
    }
    words = [sys.executable, "-I", "-S", "-c", SWITCHES, str(root / "a"), str(root / "b"), str(os.getpid())]
    read = refused = 0
    with subprocess.Popen(words, stdout=subprocess.PIPE) as switching:
        try:
            assert switching.stdout is not None and switching.stdout.readline() == b"up\n"
            while min(read, refused) < 2_000 and read + refused < 40_000:
                try:
                    calls[verb]()
                    read += 1
                except ToolError:
                    refused += 1
        finally:
            switching.kill()
    opened = b""
    with suppress(BlockingIOError):
        opened = os.read(watch, 2**16)
    os.close(watch)
    assert read and refused
    assert len(opened) // 16 == 0, "it was opened"


@pytest.mark.parametrize(
    ("path", "says"),
    [
        ("file", "not an absolute path"),
        ("~/file", "not an absolute path"),
        ("/a\0b", "NUL"),
        ("{root}/none", "does not exist"),
        ("{root}", "is a directory"),
        ("{root}/fifo", "is a pipe"),
        ("{root}/socket", "is a socket"),
        ("{root}/big", "1,001 bytes, over the limit of 1,000"),
        ("{root}/big/x", "not a directory"),
        ("/proc/self/environ", "outside the workspace"),
        ("{root}/../out", "outside the workspace"),
        ("{root}/../none", "outside the workspace"),
        ("{root}/link", "outside the workspace"),
        ("{root}/dangling", "outside the workspace"),
        ("{root}/folder/out", "outside the workspace"),
        ("{root}/loop", "too many levels of symbolic links"),
    ],
)
def test_a_forbidden_read_is_refused_with_a_reason(tmp_path: Path, path: str, says: str) -> None:
    async def body(mine: LocalWorkspace) -> None:
        root = mine.root
        (root / "big").write_bytes(b"x" * 1001)
        (tmp_path / "out").write_text("out")
        for name, target in (("link", "../out"), ("folder", ".."), ("loop", "loop"), ("dangling", "/none/such")):
            (root / name).symlink_to(target)
        os.mkfifo(root / "fifo")
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(os.path.relpath(root / "socket"))
            with pytest.raises(ToolError, match=says):
                await mine.read_file(path.format(root=root), 1000, anywhere=False)

    on_workspace(body, tmp_path)


@pytest.mark.parametrize(
    ("path", "says"),
    [
        ("/dev/zero", "is a device"),
        ("/proc/self/mem", "can't be read"),
    ],
)
def test_devices_and_endless_files_are_refused_anywhere(tmp_path: Path, path: str, says: str) -> None:
    async def body(mine: LocalWorkspace) -> None:
        with pytest.raises(ToolError, match=says):
            await mine.read_file(path, 1000, anywhere=True)

    on_workspace(body, tmp_path)


def test_depth_costs_no_descriptors(tmp_path: Path) -> None:
    """Otherwise one deep path would use up the connections' descriptors."""
    file = tmp_path.joinpath(*["a"] * 300, "file")
    file.parent.mkdir(parents=True)
    file.write_bytes(b"content")
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    held = max(map(int, os.listdir("/dev/fd")))
    resource.setrlimit(resource.RLIMIT_NOFILE, (held + 50, limits[1]))
    try:
        assert files.read(str(file), 1_000, tmp_path) == b"content"
        assert files.stat_path(str(file), tmp_path).size == 7
        assert [entry.name for entry in files.entries(str(file.parent), tmp_path, 10)[0]] == ["file"]
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)


def test_a_file_that_is_replaced_keeps_its_mode(tmp_path: Path) -> None:
    async def body(mine: LocalWorkspace) -> None:
        for mode in (0o600, 0o640, 0o755):
            (mine.root / "plan.md").touch()
            (mine.root / "plan.md").chmod(mode)
            await mine.write_file("plan.md", b"new", suffix=".md")
            assert stat.S_IMODE((mine.root / "plan.md").stat().st_mode) == mode
            assert (mine.root / "plan.md").read_bytes() == b"new"

    on_workspace(body, tmp_path)


def test_a_file_is_written_below_the_root_whole(tmp_path: Path) -> None:
    async def body(mine: LocalWorkspace) -> None:
        root = mine.root
        assert await mine.write_file("plan.md", b"one", suffix=".md") == root / "plan.md"
        assert await mine.write_file(str(root / "plan.md"), b"two", suffix=".md") == root / "plan.md"
        assert await mine.write_file("a/b/plan.md", b"deep", suffix=".md") == root / "a/b/plan.md"
        assert (root / "plan.md").read_bytes() == b"two"
        assert (root / "a/b/plan.md").read_bytes() == b"deep"
        assert sorted(path.name for path in root.iterdir()) == ["a", "plan.md"]

    on_workspace(body, tmp_path)


@pytest.mark.parametrize(
    ("path", "says"),
    [
        ("plan.txt", "does not end in .md"),
        (".md", "'.md' has no name before .md"),
        ("", "names no file"),
        ("../plan.md", r"goes up with \.\."),
        ("a/../../plan.md", r"goes up with \.\."),
        ("/tmp/plan.md", "outside the workspace"),
        ("out/plan.md", "links are not followed"),
        ("inner/plan.md", "links are not followed"),
        ("file.md/plan.md", "links are not followed"),
        ("link.md", "exists and is not a regular file"),
        ("folder.md", "exists and is not a regular file"),
        ("a\0.md", "can't be written"),
        ("x" * 300 + ".md", "can't be written"),
    ],
)
def test_a_forbidden_write_is_refused_with_a_reason(tmp_path: Path, path: str, says: str) -> None:
    async def body(mine: LocalWorkspace) -> None:
        root = mine.root
        (tmp_path / "out").mkdir()
        (root / "folder.md").mkdir()
        (root / "file.md").write_text("")
        for name, target in (("out", tmp_path / "out"), ("inner", "folder.md"), ("link.md", "file.md")):
            (root / name).symlink_to(target)
        before = sorted(root.iterdir())
        with pytest.raises(ToolError, match=says):
            await mine.write_file(path, b"data", suffix=".md")
        assert sorted(root.iterdir()) == before
        assert [*(tmp_path / "out").iterdir()] == []
        assert (root / "file.md").read_text() == ""

    on_workspace(body, tmp_path)


def test_a_link_that_took_the_place_of_the_workspace_is_not_written_through(tmp_path: Path) -> None:
    """If the folder is a user's and the server root, the write would go wherever the user's link leads."""

    async def body(mine: LocalWorkspace) -> None:
        (tmp_path / "theirs").mkdir()
        mine.root.rename(tmp_path / "away")
        mine.root.symlink_to(tmp_path / "theirs")
        with pytest.raises(ToolError, match="not followed"):
            await mine.write_file("a/plan.md", b"data", suffix=".md")
        assert os.listdir(tmp_path / "theirs") == []

    on_workspace(body, tmp_path)

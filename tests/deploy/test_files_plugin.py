"""The plugin with the file tools: what each does, for the local user, and what hostile files and paths do to it."""

import asyncio
import contextlib
import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.clients.raw_client import STATELESS, Server, served
from tests.interop.official_clients import THIRTEEN, Negotiation
from tests.interop.test_python_sdk import connected, text
from tests.servers.isolated_plugins import needs_isolation

FILES = ("-p", "builtin:files")
NAMES = ["Edit", "Glob", "Grep", "Read", "Write"]
TREE = {
    "a.py": "import os\n\ndef foo():\n    return 1\n",
    "sub/b.py": "from a import foo\n",
    "sub/c.log": "foo\n",
    ".gitignore": "*.log\nbuilt/\n",
    "built/d.py": "foo\n",
}


@contextlib.contextmanager
def files(folder: Path, *options: str, **how: str) -> Iterator[tuple[Server, Path]]:
    """Yield a server with the plugin, and its working directory with the tree."""
    with served(folder, *FILES, *options, **how) as server:  # type: ignore[arg-type]
        work = folder / "work"
        for name, text in TREE.items():
            (work / name).parent.mkdir(exist_ok=True)
            (work / name).write_text(text)
        yield server, work


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Server, Path]]:
    """Yield one server for tests that use files of their own names."""
    with files(tmp_path_factory.mktemp("files"), "--limit", "file-size=20M") as opened:
        yield opened


def left_over(work: Path) -> list[str]:
    return [path.name for path in work.rglob(".tmp-*")]


@pytest.mark.parametrize(
    ("revision", "options"),
    [
        ("2025-11-25", ()),
        (STATELESS, ()),
        pytest.param("2025-11-25", ("--isolate-plugins",), marks=needs_isolation),
    ],
)
def test_a_model_finds_reads_and_changes_files(tmp_path: Path, revision: str, options: tuple[str, ...]) -> None:
    with files(tmp_path, *options, revision=revision) as (server, work):
        tools = server.request("tools/list")["tools"]
        assert [tool["name"] for tool in tools[13:]] == NAMES
        hints = {tool["name"]: tool["annotations"]["readOnlyHint"] for tool in tools[13:]}
        assert hints == {"Edit": False, "Glob": True, "Grep": True, "Read": True, "Write": False}
        assert not any("outputSchema" in tool for tool in tools[13:])

        assert sorted(server.text("Glob", {"pattern": "**/*.py"}).splitlines()) == ["a.py", "sub/b.py"]
        assert server.text("Grep", {"pattern": r"\bfoo"}) == "a.py\n3:def foo():\nsub/b.py\n1:from a import foo"
        assert server.text("Grep", {"pattern": "foo", "mode": "files", "path": "sub"}) == "sub/b.py"
        assert server.text("Grep", {"pattern": "o", "mode": "counts", "glob": "a.*"}) == "a.py:2"
        around = server.text("Grep", {"pattern": "DEF", "path": "a.py", "context": 1, "ignore_case": True})
        assert around == "a.py\n2-\n3:def foo():\n4-    return 1"
        assert server.text("Read", {"file_path": "a.py", "offset": 3, "limit": 1}) == (
            "3\tdef foo():\n[lines 3-3 of 4; go on with offset=4]"
        )
        edit = {"file_path": "a.py", "old_string": "    return 1", "new_string": "    return 2"}
        assert server.text("Edit", edit) == "edited a.py: line 4"
        assert (
            server.text("Write", {"file_path": "new/deep/e.txt", "content": "x\n"}) == "created new/deep/e.txt: 1 line"
        )
        assert server.text("Write", {"file_path": "new/deep/e.txt", "content": "y"}) == "wrote new/deep/e.txt: 1 line"
        server.text("Bash", {"command": "cd new/deep"})
        assert server.text("Read", {"file_path": "e.txt"}) == "1\ty"
        assert ((work / "a.py").read_text(), left_over(work)) == (TREE["a.py"].replace("1", "2"), [])


@pytest.mark.brief("http 2026-07-28")
@pytest.mark.parametrize("way", [Negotiation("stdio", "legacy"), Negotiation("http", STATELESS)], ids=str)
def test_the_official_client_changes_a_file_that_it_has_read(tmp_path: Path, way: Negotiation) -> None:
    async def main() -> None:
        async with connected(tmp_path, way, *FILES) as client:
            assert [tool.name for tool in (await client.list_tools()).tools] == [*THIRTEEN, *NAMES]
            made = await client.call_tool("Write", {"file_path": "a.txt", "content": "one\n"})
            await client.call_tool("Bash", {"command": "echo two >>a.txt"})
            stale = await client.call_tool("Write", {"file_path": "a.txt", "content": "mine\n"})
            read = await client.call_tool("Read", {"file_path": "a.txt"})
            ours = await client.call_tool("Write", {"file_path": "a.txt", "content": "mine\n"})
            results = [
                (text(each), each.is_error or False, each.structured_content) for each in (made, stale, read, ours)
            ]
        assert results == [
            ("created a.txt: 1 line", False, None),
            ("a.txt: it has changed since it was read: Read it again", True, None),
            ("1\tone\n2\ttwo", False, None),
            ("wrote a.txt: 1 line", False, None),
        ]

    asyncio.run(main())


def test_without_the_plugin_its_code_is_not_loaded(tmp_path: Path) -> None:
    with served(tmp_path, env={"PYTHONVERBOSE": "1"}) as server:
        assert len(server.request("tools/list")["tools"]) == 13
        server.text("Bash", {"command": "true"})
        log = server.log()
    assert "toolgate.tools.workspace.workspace'" in log
    assert "toolgate.tools.workspace.commands.program'" not in log and "plugins/files" not in log


def test_a_file_that_was_not_read_or_has_changed_is_not_replaced(shared: tuple[Server, Path]) -> None:
    server, work = shared
    kept = work / "kept.txt"
    kept.write_text("one\n")
    write = {"file_path": "kept.txt", "content": "mine\n"}
    assert server.error("Write", write) == (
        "kept.txt: it exists, and was not read in this session: Read it first, or use Edit"
    )
    server.text("Read", {"file_path": "kept.txt", "limit": 1})
    kept.write_text("two\n")
    assert server.error("Write", write) == "kept.txt: it has changed since it was read: Read it again"
    server.text("Read", {"file_path": "kept.txt"})
    os.utime(kept, (1, 1))  # the same content still
    assert server.text("Write", write) == "wrote kept.txt: 1 line"
    assert kept.read_text() == "mine\n"


def test_a_change_keeps_the_rest_of_the_file(shared: tuple[Server, Path]) -> None:
    server, work = shared
    odd = work / "odd.txt"
    odd.write_bytes(b"\xef\xbb\xbfone\r\ntwo\xff\r\nthree")
    odd.chmod(0o640)
    link = work / "link.txt"
    link.symlink_to("odd.txt")
    assert server.text("Read", {"file_path": "link.txt"}).splitlines()[:1] == ["1\tone"]
    edit = {"file_path": "link.txt", "old_string": "one\ntwo", "new_string": "1\n2"}
    assert server.text("Edit", edit) == "edited odd.txt: line 1"
    assert odd.read_bytes() == b"\xef\xbb\xbf1\r\n2\xff\r\nthree"
    assert (stat.S_IMODE(odd.stat().st_mode), link.is_symlink()) == (0o640, True)


def test_a_text_to_replace_must_be_there_once(shared: tuple[Server, Path]) -> None:
    server, work = shared
    many = work / "many.txt"
    many.write_text("x = 1\ny\n  x = 2\n")
    asked = {"file_path": "many.txt", "old_string": "x =", "new_string": "z ="}
    assert server.error("Edit", asked) == (
        "many.txt: old_string is in it 2 times, in lines 1, 3: add text around it, or give replace_all"
    )
    assert server.text("Edit", {**asked, "replace_all": True}) == "edited many.txt: 2 places, lines 1, 3"
    assert server.error("Edit", {**asked, "old_string": "z  = 2"}) == (
        "many.txt: old_string is not in it; near to its first line are:\n3\t  z = 2"
    )
    assert server.error("Edit", {**asked, "old_string": ""}).startswith("many.txt: old_string is empty")
    assert many.read_text() == "z = 1\ny\n  z = 2\n"


ALIKE = [  # what a model writes, what is there, and the character that the error names
    ("Shot at 6.30.00 PM.txt", "Shot at 6.30.00\u202fPM.txt", "U+202F NARROW NO-BREAK SPACE"),
    ("a b.txt", "a\u00a0b.txt", "U+00A0 NO-BREAK SPACE"),
    ("caf\u00e9.txt", "cafe\u0301.txt", "U+0301 COMBINING ACUTE ACCENT"),
    ("cafe\u0301 2.txt", "caf\u00e9 2.txt", "U+00E9 LATIN SMALL LETTER E WITH ACUTE"),
    ("it's.txt", "it\u2019s.txt", "U+2019 RIGHT SINGLE QUOTATION MARK"),
    ("1 - 2.txt", "1 \u2013 2.txt", "U+2013 EN DASH"),
]


@pytest.mark.parametrize(("asked", "actual", "character"), ALIKE)
def test_a_name_that_looks_like_one_that_is_there_is_found(
    shared: tuple[Server, Path], asked: str, actual: str, character: str
) -> None:
    server, work = shared
    folder = work / actual.removesuffix(".txt")
    folder.mkdir()
    for path in (work / actual, folder / actual):
        path.write_text("found\n")
    calls: list[tuple[str, dict[str, str]]] = [
        ("Read", {"file_path": asked}),
        ("Edit", {"file_path": asked, "old_string": "a", "new_string": "b"}),
        ("Grep", {"path": asked, "pattern": "a"}),
    ]
    for tool, arguments in calls:
        assert f"{asked} does not exist; did you mean {work / actual}? It has {character}:" in server.error(
            tool, arguments
        )
    inner = f"{asked.removesuffix('.txt')}/{asked}"
    assert f"did you mean {folder / actual}? It has {character}" in server.error("Read", {"file_path": inner})
    assert f"did you mean {folder}?" in server.error("Glob", {"path": str(Path(inner).parent), "pattern": "*"})


def test_a_text_that_only_looks_like_the_one_to_replace_is_shown_with_its_characters(
    shared: tuple[Server, Path],
) -> None:
    server, work = shared
    (work / "alike.txt").write_text("first\nein\u00a0Wort\ncafe\u0301\nit\u2019s \u201cso\u201d\n")
    asked = {"file_path": "alike.txt", "new_string": "x"}
    for old, line, character in (
        ("ein Wort", "2\tein\u00a0Wort", "U+00A0 NO-BREAK SPACE"),
        ("caf\u00e9", "3\tcafe\u0301", "U+0301 COMBINING ACUTE ACCENT"),
        ('it\'s "so"', "4\tit\u2019s \u201cso\u201d", "U+2019 RIGHT SINGLE QUOTATION MARK, U+201C"),
    ):
        error = server.error("Edit", {**asked, "old_string": old})
        assert f"near to its first line are:\n{line}\n[old_string lacks {character}" in error


def test_a_write_protected_file_is_refused_to_root_too(shared: tuple[Server, Path]) -> None:
    server, work = shared
    (work / "protected.txt").write_text("one\n")
    (work / "protected.txt").chmod(0o444)
    edit = {"file_path": "protected.txt", "old_string": "one", "new_string": "two"}
    assert "it is write-protected" in server.error("Edit", edit)
    assert (work / "protected.txt").read_text() == "one\n"


def test_a_file_that_does_not_fit_leaves_the_old_one(shared: tuple[Server, Path]) -> None:
    server, work = shared
    small = work / "small.txt"
    small.write_text("a" * 8 * 2**20)
    asked = {"file_path": "small.txt", "old_string": "a", "new_string": "aaa", "replace_all": True}
    assert server.error("Edit", asked) == "small.txt: there is no room for it (file too large): nothing was changed"
    assert (small.stat().st_size, left_over(work)) == (8 * 2**20, [])


def test_what_is_no_text_is_named(shared: tuple[Server, Path]) -> None:
    server, work = shared
    os.mkfifo(work / "pipe")
    (work / "loop").symlink_to("loop")
    (work / "picture").write_bytes(b"\x89PNG\r\n\x1a\n\0\0")
    (work / "paper").write_bytes(b"%PDF-1.7\n")
    (work / "utf16").write_bytes("zwölf\n".encode("utf-16"))
    (work / "escape").write_text("\x1b[31mred\x1b[0m\n")
    (work / "empty").touch()
    for path, words in {
        "pipe": "pipe: it is a pipe, not a file",
        "loop": "loop: it is a link that leads in a circle, or has changed",
        "/dev/zero": "/dev/zero: it is a device, not a file",
        ".": ".: it is a folder: Glob lists its files",
        "picture": "picture: it is a PNG image: use ReadImage (10 bytes)",
        "paper": "paper: it is a PDF: use Bash, such as pdftotext FILE - (9 bytes)",
        "emty": "emty does not exist; did you mean empty?",
        "a\0b": "a␀b: the path holds a NUL character",
        "a.py/x": "a.py/x: not a directory",
        "": ": the path is empty",
    }.items():
        assert server.error("Read", {"file_path": path}) == words
    for path in ("pipe", "/dev/null"):
        assert "not a file" in server.error("Write", {"file_path": path, "content": "x"})
        assert "not a file" in server.error("Grep", {"pattern": "x", "path": path})
    assert server.text("Read", {"file_path": "utf16"}) == "1\tzwölf"
    assert server.text("Read", {"file_path": "empty"}) == "[the file is empty]"
    assert server.text("Read", {"file_path": "escape"}).splitlines()[0] == "1\t␛[31mred␛[0m"


def test_large_files_and_long_lines_are_read_in_parts(shared: tuple[Server, Path]) -> None:
    server, work = shared
    with (work / "large").open("wb") as large:
        large.write(b"first\n" + b"x" * 70_000 + b"\n" + b"line\n" * 10_000)
        large.truncate(10 * 2**30)  # a hole
    text = server.text("Read", {"file_path": "large", "limit": 2})
    assert text.startswith("1\tfirst\n2\txxx") and len(text) < 2_200
    assert "go on with offset=3; lines are cut at 2,000 characters" in text
    assert server.error("Read", {"file_path": "large", "offset": -1}).endswith("use tail in Bash")
    (work / "wide").write_text("y" * 1_000 + "\n" + "z" * 1_000 * 100 + "\n" + "w\n" * 50_000)
    text = server.text("Read", {"file_path": "wide", "limit": 100_000})
    assert len(text) < 30_200 and text.count("\n") > 2_000 and "of 50,002; go on with offset=" in text


def test_names_and_content_that_are_not_utf_8_are_shown(shared: tuple[Server, Path]) -> None:
    server, work = shared
    folder = work / "bytes"
    folder.mkdir()
    with open(os.fsencode(folder) + b"/caf\xe9\n.txt", "wb") as file:
        file.write(b"caf\xe9 au lait\n")
    assert server.text("Glob", {"pattern": "*", "path": "bytes"}) == "bytes/caf�␊.txt"
    assert server.text("Grep", {"pattern": "lait", "path": "bytes"}) == "bytes/caf�␊.txt\n1:caf� au lait"


def test_results_are_bounded(shared: tuple[Server, Path]) -> None:
    server, work = shared
    folder = work / "many"
    folder.mkdir()
    for number in range(300):
        (folder / f"{number}.txt").write_text("match\n" * 20)
    names = server.text("Glob", {"pattern": "many/*"}).splitlines()
    assert len(names) == 201 and names[-1] == "[the newest 200 of 300: narrow the pattern]"
    deep = folder / "/".join(["語" * 80] * 14)
    deep.mkdir(parents=True)
    for number in range(300):
        (deep / f"{number}.long").write_text("long\n")
    for name, given in (
        ("Glob", {"pattern": "**/*.long"}),
        ("Grep", {"pattern": "long", "mode": "files"}),
        ("Grep", {"pattern": "long", "mode": "counts"}),
    ):
        text = server.text(name, {**given, "path": "many"})
        assert len(text) < 31_000 and text.splitlines()[-1].endswith("]") and ".long" in text
    said = server.error("Read", {"file_path": "x" * 100_000})
    assert said.endswith("longer than 4,096 characters") and len(said) < 5_000
    lines = server.text("Grep", {"pattern": "match", "path": "many"}).splitlines()
    assert len(lines) == 251 and lines[-1] == "[there is more: narrow the pattern, path or glob]"


@pytest.mark.parametrize(
    ("glob", "path"),
    [
        ("*a" * 200 + "b", "a" * 250),
        ("a*" * 200 + "b", "a" * 250),
        ("**/" * 150 + "b", "a/" * 200 + "a"),
        ("**/a/" * 90 + "b", "a/" * 200 + "a"),
        ("**/*a*a*a*a/" * 30 + "b", ("a" * 50 + "/") * 40 + "a"),
        ("[a-z]*" * 80 + "!", "a" * 250),
    ],
)
def test_no_glob_and_no_gitignore_takes_more_than_steps(shared: tuple[Server, Path], glob: str, path: str) -> None:
    """One that went back to every earlier choice would take longer than the search may, and the text would say so."""
    server, work = shared
    folder = work / f"steps-{glob[:6].encode().hex()}"
    (folder / path).parent.mkdir(parents=True)
    (folder / path).touch()
    (folder / ".gitignore").write_text(f"{glob}\nignored\n")
    (folder / "ignored").touch()
    assert server.text("Glob", {"pattern": f"{folder.name}/**/[ai]*"}) == f"{folder.name}/{path}"
    text = server.text("Glob", {"pattern": f"{folder.name}/{glob}"})
    assert text.startswith("[no file in ") and "\n" not in text


@pytest.mark.parametrize(
    ("glob", "matching", "others"),
    [
        ("**/b/*.c", ["b/x.c", "b/b/x.c", "a/b/b/x.c"], ["b/x.d", "x.c"]),
        ("a/**/b", ["a/b", "a/x/y/b"], ["a/x", "ab"]),
        ("{a,b/{c,d}}.t", ["a.t", "b/c.t", "b/d.t"], ["c.t", "b.t"]),
        ("*ab*c", ["abc", "aabbcc", "xabxcc"], ["acb", "ab/c"]),
        ("a**b", ["ab", "axb"], ["a/b"]),
        ("[!a]?[]]", ["bx]", "]é]"], ["ax]", "bx["]),
        (r"\{x\*}", ["{x*}"], ["x", "{xy}"]),
        ("{a", ["{a"], ["a"]),
    ],
)
def test_globs_match_paths_as_a_shell_does(
    shared: tuple[Server, Path], glob: str, matching: list[str], others: list[str]
) -> None:
    server, work = shared
    folder = work / f"glob-{glob.encode().hex()}"
    for path in (*matching, *others):
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).touch()
    found = server.text("Glob", {"pattern": glob, "path": folder.name}).splitlines()
    assert sorted(found) == sorted(f"{folder.name}/{path}" for path in matching)


def test_globs_and_rules_have_limits(shared: tuple[Server, Path]) -> None:
    server, work = shared
    folder = work / "limits"
    folder.mkdir()
    rules = [f"rule{number}" for number in range(1_001)]
    (folder / ".gitignore").write_text("\n".join(rules))
    for name in rules[-2:]:
        (folder / name).touch()
    assert server.text("Glob", {"pattern": "limits/rule*"}) == f"limits/{rules[-1]}"
    choices = ",".join(map(str, range(901, 1_001)))
    assert server.text("Glob", {"pattern": f"limits/rule{{{choices}}}"}) == f"limits/{rules[-1]}"
    said = server.error("Glob", {"pattern": "{" + ",".join("a" * 101) + "}"})
    assert said.endswith("the glob's braces stand for more than 100 globs")
    assert server.error("Glob", {"pattern": "*" * 501}).endswith("the glob is longer than 500 characters")


def test_a_plan_refuses_changes_alone(shared: tuple[Server, Path]) -> None:
    server, work = shared
    server.text("PlanMode", {"action": "enter", "goal": "look"})
    try:
        assert server.text("Read", {"file_path": "a.py", "limit": 1}).startswith("1\timport os")
        assert server.text("Glob", {"pattern": "a.*"}) == "a.py"
        assert server.text("Grep", {"pattern": "import os"}) == "a.py\n1:import os"
        for name, given in (("Write", {"content": "x"}), ("Edit", {"old_string": "os", "new_string": "re"})):
            assert "is refused while a plan is active" in server.error(name, {"file_path": "a.py", **given})
    finally:
        server.text("PlanMode", {"action": "reset"})
    assert (work / "a.py").read_text() == TREE["a.py"]


@pytest.mark.programs("rg")
def test_both_engines_find_the_same(tmp_path: Path) -> None:
    found = []
    for name, path in (("own", "/nowhere"), ("ripgrep", os.environ["PATH"])):
        (tmp_path / name).mkdir()
        with files(tmp_path / name, env={"PATH": path}) as (server, _):  # type: ignore[arg-type]
            asked = [{"pattern": r"fo+|impo", "mode": mode, "context": 1} for mode in ("lines", "files", "counts")]
            globs = ("sub/*.py", "/a.py", "./a.py", "**/*.py")
            asked += [{"pattern": "foo", "mode": "files", "glob": glob} for glob in globs]
            found.append([server.text("Grep", each) for each in asked])
            assert server.text("Grep", {"pattern": "foo", "glob": "!*.md"}).startswith("[nothing in")
    with files(tmp_path) as (server, work):
        (work / "long").write_text("x" * 2**23 + "needle\nneedle\n")
        text = server.text("Grep", {"pattern": "needle"})
        assert text.startswith("long\n2:needle\n[matches in lines of more than") and text.count("\n") == 2
    assert found[0] == found[1]


@pytest.mark.brief
@pytest.mark.programs("rg")
@pytest.mark.parametrize("path", ["/nowhere", os.environ["PATH"]])
def test_line_ends_of_windows_are_line_ends(tmp_path: Path, path: str) -> None:
    with files(tmp_path, env={"PATH": path}) as (server, work):  # type: ignore[arg-type]
        (work / "windows.txt").write_bytes(b"one foo\r\ntwo\r\n")
        for pattern in ("foo$", "one foo$", "^one.*$"):
            assert server.text("Grep", {"pattern": pattern, "path": "windows.txt"}) == "windows.txt\n1:one foo"
        for pattern in (r"foo\n", "foo\ntwo", r"foo\r\n"):
            assert "lines are searched one by one: use rg -U" in server.error("Grep", {"pattern": pattern})
        for pattern in (r"one[^\n]*", r"one [^\r\n]+"):
            assert "1:one foo" in server.text("Grep", {"pattern": pattern, "path": "windows.txt"})
        assert server.text("Grep", {"pattern": r"\\n", "path": "windows.txt"}).startswith("[nothing in")


@pytest.mark.soak  # 20 s
def test_a_pattern_that_never_ends_is_stopped(tmp_path: Path) -> None:
    """Without ripgrep, which takes time in proportion to the file."""
    with files(tmp_path, env={"PATH": "/nowhere"}) as (server, work):  # type: ignore[arg-type]
        (work / "evil").write_text("a" * 5_000 + "!\n")
        assert "was stopped: simplify the pattern" in server.error("Grep", {"pattern": "(a+)+$", "path": "evil"})

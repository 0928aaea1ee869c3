"""InvokeSkill and the catalogue: which skills are found, which are skipped, and the cost."""

import os
import random
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.clients.raw_client import PATIENCE
from tests.servers.line_counter import counted_lines
from tests.tools.fake_context import FakeServices, data, refused, run, said
from toolgate.tools.builtin.skills import frontmatter, yaml_fields
from toolgate.tools.builtin.skills.skills import (
    BUILT_IN,
    MAX_DESCRIPTION_BYTES,
    Skills,
    instructions,
    invoke_skill,
    tool_description,
)

GOOD = "---\nname: {name}\ndescription: {about}\n---\nDo it.\n"


def write(folder: Path, name: str, about: str = "What it is for", text: str | None = None) -> Path:
    path = folder / name / "SKILL.md"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(GOOD.format(name=name, about=about) if text is None else text)
    return path


def found(*folders: Path) -> dict[str, str]:
    return {name: skill.description for name, skill in Skills(folders).catalogue().items()}


def invoked(tmp_path: Path, name: str, **arguments: str) -> Any:
    outputs: list[Any] = []

    async def body() -> None:
        async with FakeServices(tmp_path) as lent:
            outputs.append(await lent.call(invoke_skill, skill_name=name, **arguments))

    run(body())
    return outputs[0]


def test_folders_are_searched_in_order_and_the_first_of_a_name_wins(tmp_path: Path) -> None:
    write(tmp_path / "one", "same", "from one")
    write(tmp_path / "two", "same", "from two")
    write(tmp_path / "two", "also", "only in two")
    assert found(tmp_path / "one", tmp_path / "two", tmp_path / "absent") == {
        "also": "only in two",
        "same": "from one",
    }
    assert list(found(tmp_path / "two", tmp_path / "one").items())[1] == ("same", "from two")


def test_yaml_is_read_as_yaml(tmp_path: Path) -> None:
    front = 'name: "quoted"\ndescription: >\n  Folded over\n  two: lines\nmetadata:\n  version: "1"\n'
    write(tmp_path, "quoted", text=f"---\n{front}---\nbody")
    assert found(tmp_path) == {"quoted": "Folded over two: lines"}


@pytest.mark.parametrize(
    "text",
    [
        "",
        "\n\n",
        "---\nname: x\ndescription: never closed\n",
        "---\nname: broken\n---\n",
        "---\nname: broken\ndescription:\n---\n",
        "---\nname: broken\ndescription: []\n---\n",
        "---\n- a\n- list\n---\n",
        "---\njust a text\n---\n",
        "---\nname: &anchor x\ndescription: x\n---\n",
        f"---\nname: x\ndescription: {'[' * 5000}\n---\n",
        f"---\nname: x\ndescription: {'x' * 20_000}\n---\n",
        f"---\nname: x\ndescription: y\n---\n{'x' * 300_000}",
    ],
)
def test_a_broken_skill_is_left_out_with_a_line_in_the_log(
    tmp_path: Path, text: str, caplog: pytest.LogCaptureFixture
) -> None:
    write(tmp_path, "broken", text=text)
    write(tmp_path, "good")
    assert found(tmp_path) == {"good": "What it is for"}
    assert [record.message for record in caplog.records if "is left out" in record.message] != []


def test_yaml_that_multiplies_itself_is_left_out_at_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    levels = [f"a{n}: &a{n} {{<<: [{', '.join([f'*a{n - 1}'] * 10)}]}}" for n in range(1, 9)]
    front = "\n".join(["name: broken", "description: x", "a0: &a0 {k: v}", *levels])
    write(tmp_path, "broken", text=f"---\n{front}\n---\nbody")
    start = time.process_time()
    assert found(tmp_path) == {}
    assert time.process_time() - start < 2
    assert "anchors or aliases" in caplog.text


def test_skills_beyond_the_limit_and_files_that_are_none_are_named_in_the_log_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("toolgate.tools.builtin.skills.skills.MAX_SKILLS", 3)
    for name in ("a", "b", "c", "d", "e"):
        write(tmp_path, name)
    (tmp_path / "a" / "SKILL.md").rename(tmp_path / "a" / "other")
    (tmp_path / "a" / "SKILL.md").symlink_to("other")
    skills = Skills([tmp_path])
    assert list(skills.catalogue()) == ["b", "c"]
    skills.catalogue()
    assert [record.message for record in caplog.records] == [
        f"2 skills in {tmp_path} are left out: the first 3 by name are read",
        f"skill {tmp_path / 'a'} is left out: its SKILL.md is a link, or not a file",
    ]


def test_a_skill_that_is_not_utf_8_is_left_out(tmp_path: Path) -> None:
    write(tmp_path, "latin").write_bytes(b"---\nname: latin\ndescription: caf\xe9\n---\n")
    assert found(tmp_path) == {}


def test_a_byte_order_mark_and_windows_line_ends_do_no_harm(tmp_path: Path) -> None:
    write(tmp_path, "windows").write_bytes(
        b"\xef\xbb\xbf---\r\nname: windows\r\ndescription: From a PC\r\n---\r\nDo it.\r\n"
    )
    assert found(tmp_path) == {"windows": "From a PC"}
    assert frontmatter.read_parts(tmp_path / "windows" / "SKILL.md").body == "Do it."


def test_a_description_comes_on_one_line_without_control_characters(tmp_path: Path) -> None:
    write(tmp_path, "odd", text='---\nname: odd\ndescription: "one\\n- two: x\\e[31m\\u2028three"\n---\n')
    assert found(tmp_path) == {"odd": "one - two: x [31m three"}


def test_a_link_that_leads_to_itself_hides_no_other_skill(tmp_path: Path) -> None:
    write(tmp_path, "good")
    (tmp_path / "loop").symlink_to("loop")
    assert list(found(tmp_path)) == ["good"]


def test_links_are_followed_to_a_skill_but_not_out_of_one(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text(GOOD.format(name="stolen", about="x"))
    (tmp_path / "skills" / "stolen").mkdir(parents=True)
    (tmp_path / "skills" / "stolen" / "SKILL.md").symlink_to(secret)
    os.mkfifo(tmp_path / "skills" / "stolen" / "pipe")
    write(tmp_path / "elsewhere", "mine")
    (tmp_path / "skills" / "mine").symlink_to(tmp_path / "elsewhere" / "mine")
    (tmp_path / "elsewhere" / "mine" / "out").symlink_to("/etc")
    (tmp_path / "elsewhere" / "mine" / "passwd").symlink_to("/etc/passwd")
    (tmp_path / "elsewhere" / "mine" / "notes.txt").touch()
    assert list(found(tmp_path / "skills")) == ["mine"]
    assert data(invoked(tmp_path, "mine"))["files"] == ["notes.txt"]


def test_a_pipe_for_a_skill_is_not_waited_on(tmp_path: Path) -> None:
    (tmp_path / "pipe").mkdir()
    os.mkfifo(tmp_path / "pipe" / "SKILL.md")
    assert found(tmp_path) == {}


def test_the_catalogue_is_always_as_the_folders_are(tmp_path: Path) -> None:
    skills = Skills([tmp_path])
    assert skills.catalogue() == {}
    for about in ("aaa", "bbb", "ccc"):  # the same size, within one tick of the file system's clock
        write(tmp_path, "one", about)
        assert skills.catalogue()["one"].description == about
    (tmp_path / "one" / "SKILL.md").unlink()
    assert skills.catalogue() == {}


def test_an_unchanged_skill_is_not_read_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write(tmp_path, "one")
    monkeypatch.setattr("toolgate.tools.builtin.skills.skills.RACY_NS", -(10**12))
    skills = Skills([tmp_path])
    skills.catalogue()
    monkeypatch.setattr(frontmatter, "read_head", lambda *_: pytest.fail("read again"))
    assert list(skills.catalogue()) == ["one"]
    monkeypatch.undo()
    path.write_text(GOOD.format(name="one", about="something longer"))
    assert skills.catalogue()["one"].description == "something longer"


def test_yaml_results_are_cached_for_the_next_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("toolgate.tools.builtin.skills.skills.RACY_NS", -(10**12))
    write(tmp_path / "skills", "plain")
    Skills([tmp_path / "skills"], tmp_path / "cache.json").catalogue()
    assert not (tmp_path / "cache.json").exists()
    write(tmp_path / "skills", "quoted", '"It is: quoted"')
    write(tmp_path / "skills", "broken", "&anchor")
    Skills([tmp_path / "skills"], tmp_path / "cache.json").catalogue()
    script = (
        "import sys; from pathlib import Path; from toolgate.tools.builtin.skills.skills import Skills\n"
        "print(Skills([Path(sys.argv[1])], Path(sys.argv[2])).describe(1000))\n"
        "print('yaml' in sys.modules)"
    )
    arguments = [sys.executable, "-c", script, str(tmp_path / "skills"), str(tmp_path / "cache.json")]
    out = subprocess.run(arguments, capture_output=True, text=True, timeout=60)
    assert out.stdout == "- plain: What it is for\n- quoted: It is: quoted\nFalse\n"
    assert "broken is left out" in out.stderr
    write(tmp_path / "skills", "quoted", '"It is: another"')
    assert Skills([tmp_path / "skills"], tmp_path / "cache.json").catalogue()["quoted"].description == "It is: another"


@pytest.mark.parametrize("content", [b"", b"nonsense", b'{"/x": 3}', b"[]"])
def test_a_cache_that_is_damaged_or_cannot_be_written_does_no_harm(tmp_path: Path, content: bytes) -> None:
    write(tmp_path / "skills", "quoted", '"x: y"')
    (tmp_path / "cache.json").write_bytes(content)
    assert list(Skills([tmp_path / "skills"], tmp_path / "cache.json").catalogue()) == ["quoted"]
    (tmp_path / "file").touch()
    assert list(Skills([tmp_path / "skills"], tmp_path / "file" / "cache.json").catalogue()) == ["quoted"]


def test_a_line_read_without_yaml_is_read_as_yaml_would() -> None:
    parts = ["a", "Yes", "no", "NULL", "on", ":", ": ", " :", "#", " #", "'", '"', "- ", "{", "]", "&a", "*", "!", "|"]
    parts += [
        "1",
        "2020-01-01",
        " ",
        "\t",
        "é",
        "🙂",
        "\u2028",
        "\x85",
        "\u00a0",
        "%",
        "@",
        "`",
        ",",
        "~",
        "=",
        "...",
        "---",
    ]
    dice = random.Random(7)
    plain = 0
    for _ in range(20_000):
        value = "".join(dice.choice(parts) for _ in range(dice.randint(1, 5)))
        line = f"name: {value}"
        fields = yaml_fields.parse_plain(line)
        if fields is not None:
            plain += 1
            assert yaml.safe_load(line) == fields, line
    assert plain > 500


def test_the_tools_description_carries_the_catalogue_in_under_a_kilobyte(tmp_path: Path) -> None:
    write(tmp_path, "zebra", "Comes last")
    write(tmp_path, "ant", "Comes first")
    told = tool_description(Skills([tmp_path]))
    assert told == f"{invoke_skill.description}\n- ant: Comes first\n- zebra: Comes last"
    for number in range(100):
        write(tmp_path, f"skill-{number}", "Ärger " * 100)
        if number % 7 == 0 or number == 99:
            told = tool_description(Skills([tmp_path]))
            assert len(told.encode()) <= MAX_DESCRIPTION_BYTES < 1024
    assert told.split("\n")[-1].endswith(" more")
    assert sum(line.startswith("- skill-") for line in told.split("\n")) > 30


def test_a_skill_is_returned_with_its_arguments_folder_and_files(tmp_path: Path) -> None:
    text = "---\nname: review\ndescription: x\n---\n# Review\n\nLook at $ARGUMENTS. Again: $ARGUMENTS\n"
    folder = write(tmp_path / "skills", "review", text=text).parent
    for name in ("b.md", "a/script.py", ".hidden", ".git/config", "__pycache__/x.pyc", "1/2/3/4/5/deep"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).touch()
    output = invoked(tmp_path, "review", arguments="$ARGUMENTS and\nmain.py")
    assert said(output) == (
        "# Review\n\nLook at $ARGUMENTS and\nmain.py. Again: $ARGUMENTS and\nmain.py\n\n"
        f"Skill folder: {folder}\nFiles in it:\n- a/script.py\n- b.md"
    )
    assert data(output) == {
        "name": "review",
        "path": str(folder),
        "files": ["a/script.py", "b.md"],
        "body": said(output).partition("\n\nSkill folder")[0],
    }


def test_a_skill_of_watched_folders_costs_the_same_beside_any_number_of_others(tmp_path: Path) -> None:
    def count_fewest_lines(count: int) -> int:
        skills = Skills([tmp_path / str(count)])
        for number in range(count):
            write(tmp_path / str(count), f"s{number}")
        skills.is_watched = True
        fewest, end = 10**9, time.monotonic() + PATIENCE
        while fewest >= 1_000 and time.monotonic() < end:  # at first the files have only just changed
            with counted_lines() as counted:
                assert instructions(skills, "s7", "").startswith("Do it.")
            fewest = min(fewest, counted.lines)
        return fewest

    assert count_fewest_lines(200) == count_fewest_lines(20) < 1_000


def test_arguments_without_a_place_for_them_are_appended(tmp_path: Path) -> None:
    folder = write(tmp_path / "skills", "plain").parent
    end = f"\n\nSkill folder: {folder}"
    assert said(invoked(tmp_path, "plain", arguments="this")) == f"Do it.\n\nARGUMENTS: this{end}"
    assert said(invoked(tmp_path, "plain")) == f"Do it.{end}"


def test_the_listed_files_are_bounded(tmp_path: Path) -> None:
    folder = write(tmp_path / "skills", "many").parent
    for number in range(150):
        (folder / f"{number:03}").touch()
    output = invoked(tmp_path, "many")
    assert len(data(output)["files"]) == 100
    assert "Files in it (the first of them):" in said(output)


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("nowhere", "'nowhere' is not a skill; skills are: one, toolgate-tools"),
        ("../skills/one", "is a path, not the name of a skill; skills are: one"),
        ("/etc", "is a path"),
        ("a\\b", "is a path"),
        ("", "'' is not a skill"),
        ("x" * 10_000, "… is not a skill".replace("… is", "…' is")),
    ],
)
def test_an_unknown_skill_is_refused_with_the_known_names(tmp_path: Path, name: str, told: str) -> None:
    write(tmp_path / "skills", "one")
    text = refused(invoked(tmp_path, name))
    assert told in text
    assert len(text) < 500


def test_arguments_are_bounded(tmp_path: Path) -> None:
    assert "at most 20000" in refused(invoked(tmp_path, "toolgate-tools", arguments="x" * 20_001))


def test_the_built_in_skill_is_there_and_needs_no_yaml() -> None:
    script = (
        "import sys; from toolgate.tools.builtin.skills.skills import BUILT_IN, Skills\n"
        "print(*Skills([BUILT_IN]).catalogue(), 'yaml' in sys.modules)"
    )
    out = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60)
    assert out.stdout == "toolgate-tools False\n"
    body = frontmatter.read_parts(BUILT_IN / "toolgate-tools" / "SKILL.md").body
    for name in ("Bash", "ReadDocs", "WebSearch", "TaskManager", "PlanMode", "AskUserQuestion", "SetCallback"):
        assert name in body


def test_the_skill_folders_or_their_nearest_parents_are_watched(tmp_path: Path) -> None:
    write(tmp_path / "there", "one")
    folders = [tmp_path / "there", tmp_path / "not" / "there" / "yet", BUILT_IN]
    assert Skills(folders).watch_roots() == [tmp_path, tmp_path / "there", tmp_path / "there" / "one"]


def test_the_schema_is_the_contracts() -> None:
    properties = invoke_skill.input["properties"]
    assert {name: declared["type"] for name, declared in properties.items()} == {
        "skill_name": "string",
        "arguments": "string",
    }
    assert invoke_skill.input["required"] == ["skill_name"]

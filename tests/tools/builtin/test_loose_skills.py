"""Skills as people write them: names, descriptions and front matter that do not fit the rules, and placeholders."""

import os
import time
from pathlib import Path
from typing import Any

import pytest

from tests.tools.fake_context import FakeServices, data, refused, run, said
from toolgate.tools.builtin.skills.files import SkillEntries
from toolgate.tools.builtin.skills.skills import Skills, invoke_skill


def write(folder: Path, name: str, text: str) -> Path:
    path = folder / name / "SKILL.md"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def invoke(tmp_path: Path, name: str, arguments: str = "") -> Any:
    outputs: list[Any] = []

    async def body() -> None:
        async with FakeServices(tmp_path) as lent:
            outputs.append(await lent.call(invoke_skill, skill_name=name, arguments=arguments))

    run(body())
    return outputs[0]


def describe(folder: Path) -> dict[str, str]:
    return {name: skill.description for name, skill in Skills([folder]).catalogue().items()}


@pytest.mark.parametrize(
    ("front", "description"),
    [
        ("name: loose\ndescription: Use this skill when: the user asks", "Use this skill when: the user asks"),
        ("name: loose\ndescription: See https://x.org: it says", "See https://x.org: it says"),
        ("name: loose\ndescription: Two hints\nargument-hint: [filename] [format]", "Two hints"),
        ("name: loose\ndescription: [WIP] in brackets", "[WIP] in brackets"),
        ("name: loose\ndescription: {draft} in braces", "{draft} in braces"),
        ("name: loose\ndescription: @someone first", "@someone first"),
        ("name: loose\ndescription: `code` first", "`code` first"),
        ("name: loose\ndescription: %s is replaced", "%s is replaced"),
        ("name: loose\ndescription: *.ts files", "*.ts files"),
        ("name: loose\ndescription: & more", "& more"),
        ("name: loose\ndescription: !beware", "!beware"),
        ("name: loose\ndescription: - an item", "- an item"),
        ("name: loose\ndescription: ? asked", "? asked"),
        ("name: loose\ndescription: > quoted mail", "> quoted mail"),
        ("name: loose\ndescription: | a pipe", "| a pipe"),
        ("name: loose\ndescription: A glob\nglobs: *.ts", "A glob"),
        ("name: loose\ndescription: A glob\nglobs: **/*.{ts,tsx}", "A glob"),
        ('name: loose\ndescription: "Quoted" and more', '"Quoted" and more'),
        ('name: loose\ndescription: "Never closed', '"Never closed'),
        ("name: loose\ndescription: 'It's here'", "It's here"),
        ("name:\tloose\ndescription:\tafter tabs", "after tabs"),
        ("name:loose\ndescription:without a space", "without a space"),
        ("name : loose\ndescription : a: b", "a: b"),
        ("  name: loose\n  description: indented: yes", "indented: yes"),
        ("name: loose\ndescription: Use when:", "Use when:"),
        ("name: loose\ndescription: \u201ccurly: quotes\u201d", "\u201ccurly: quotes\u201d"),
        ("name: loose\ndescription: Use when: this\n  goes on: here", "Use when: this goes on: here"),
        ("name: loose\ndescription: Use when: this\ngoes on here", "Use when: this goes on here"),
        ("name: loose\ndescription: x\nmetadata:\n  note: a: b\n  list:\n    - *.md\n    - [a] b", "x"),
        ("name: loose\ndescription: x\nmetadata:\n\tauthor: me", "x"),
        ("name: loose\ndescription: x\nallowed-tools: Bash(git:*), Read\nargument-hint: <a> [b]: c", "x"),
        ("name: loose\nname: loose\ndescription: twice", "twice"),
        ("name: loose\ndescription: >-\n  Folded: over\n  two lines", "Folded: over two lines"),
        ("name: loose\ndescription: |\n  As it\n  is", "As it is"),
        ("name: loose\ndescription: |\nnot indented", "not indented"),
        ("name: loose\ndescription:\n  - one\n  - two", "one, two"),
        ("name: loose\ndescription: [one, two]", "one, two"),
        ("name: loose\ndescription: 42", "42"),
        ("name: loose\ndescription: 2024-01-01", "2024-01-01"),
        ("name: loose\ndescription: {a: b}", "a: b"),
        ("name: loose\ndescription: caf\u00e9 \U0001f600: so", "caf\u00e9 \U0001f600: so"),
        ("name: loose\ndescription: \x1b[31mred: yes", "[31mred: yes"),
        ("# a comment\nname: loose\n\ndescription: when: so # no comment", "when: so # no comment"),
        ("name: loose", "The body says it."),
        ("name: loose\ndescription:", "The body says it."),
        ("name: loose\ndescription: null", "The body says it."),
        ("description: no name", "no name"),
        ("name: Loose Automation\ndescription: x", "x"),
        ("name: loose_one\ndescription: x", "x"),
        ("name: -loose\ndescription: x", "x"),
        ("name: loose-\ndescription: x", "x"),
        ("name: two--hyphens\ndescription: x", "x"),
        ("name: ../up\ndescription: x", "x"),
        (f"name: {'x' * 65}\ndescription: x", "x"),
        ("name: 123\ndescription: x", "x"),
        ("name: true\ndescription: x", "x"),
        ("name: [loose]\ndescription: x", "x"),
        ("name: !!python/object/apply:os.system [true]\ndescription: x", "x"),
        ("name: !!float ''\ndescription: x", "x"),
        ("", "The body says it."),
    ],
)
def test_a_skill_is_loaded_as_other_programs_load_it(tmp_path: Path, front: str, description: str) -> None:
    path = write(tmp_path, "loose", f"---\n{front}\n---\n# Title\n\nThe body\nsays it.\n\nMore.\n")
    assert describe(tmp_path) == {"loose": description}
    entry = SkillEntries().read_entry("loose", path.parent)
    assert entry.frontmatter["name"] == "loose"
    assert entry.frontmatter["description"]


@pytest.mark.parametrize(
    ("text", "description"),
    [
        ("Only a text.\n", "Only a text."),
        ("# Title alone\n", "Title alone"),
        ("# Title\n\n<!-- note -->\n\n![badge](x)\n\n> A quotation.\n", "> A quotation."),
        ("\ufeff# Title\r\n\r\nFrom a PC.\r\n", "From a PC."),
        ("\n\n---\nname: x-y\ndescription: After empty lines\n---\nBody", "After empty lines"),
        ("---  \nname: x-y\ndescription: Spaces after the lines\n---\t\nBody", "Spaces after the lines"),
        ("---\rname: x-y\rdescription: Old line ends\r---\rBody", "Old line ends"),
    ],
)
def test_front_matter_may_be_missing(tmp_path: Path, text: str, description: str) -> None:
    write(tmp_path, "free", text)
    assert list(describe(tmp_path).values()) == [description]


@pytest.mark.parametrize("folder", ["snake_case", "With Space", "-2chat", "Ünïcode", "UPPER", "a.b", "x" * 100])
def test_the_folder_gives_the_name_where_the_front_matter_has_none(tmp_path: Path, folder: str) -> None:
    skill = write(tmp_path / "skills", folder, "---\nname: Not A Name\ndescription: x\n---\nDo it.").parent
    (skill / "notes.txt").touch()
    assert list(describe(tmp_path / "skills")) == [folder]
    assert said(invoke(tmp_path, folder)).startswith("Do it.")
    entry = SkillEntries().read_entry(folder, skill)
    assert len(entry.resources) == 2
    assert entry.uri.isascii()
    assert " " not in entry.uri


@pytest.mark.parametrize(
    "name", ["ahrefs-automation", "Ahrefs Automation", "ahrefs_automation", "seo", "/seo", "plugin:seo", "/plugin:SEO"]
)
def test_a_skill_is_found_by_a_name_that_is_spelled_nearly_so(tmp_path: Path, name: str) -> None:
    write(tmp_path / "skills", "seo", "---\nname: ahrefs-automation\ndescription: x\n---\nDo it.")
    output = invoke(tmp_path, name)
    assert said(output).startswith("Do it.")
    assert data(output)["name"] == "ahrefs-automation"


def test_two_skills_that_are_spelled_nearly_alike_are_not_guessed(tmp_path: Path) -> None:
    for name in ("a-b", "a_b"):
        write(tmp_path / "skills", name, f"---\nname: {name}\ndescription: x\n---\n{name}")
    assert said(invoke(tmp_path, "a_b")).startswith("a_b")
    assert "'A B' is not a skill" in refused(invoke(tmp_path, "A B"))


def test_a_copy_that_kept_its_name_goes_by_its_folder(tmp_path: Path) -> None:
    for folder in ("a-copy", "review", "z-copy"):
        write(tmp_path / "skills", folder, f"---\nname: review\ndescription: {folder}\n---\n{folder}")
    assert describe(tmp_path / "skills") == {"a-copy": "a-copy", "review": "review", "z-copy": "z-copy"}
    assert said(invoke(tmp_path, "z-copy")).startswith("z-copy")
    entry = SkillEntries().read_entry("z-copy", tmp_path / "skills" / "z-copy")
    assert (entry.uri, entry.frontmatter["name"]) == ("skill://z-copy/SKILL.md", "z-copy")


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("---\n- a list\n---\nBody", "its front matter is not a list of fields"),
        ("---\nname: x\nno end", "its front matter has no second line of ---"),
        ("---\nname: x\ndescription: &a b\n---\nBody", "its front matter has YAML anchors or aliases"),
        ("---\nname: x\n---\n", "it has neither a description nor instructions"),
        ("", "it has neither a description nor instructions"),
        ("x" * 300_000, "SKILL.md is larger than 262144 bytes"),
        (f"---\nname: x\ndescription: {'x' * 20_000}\n---\n", "its front matter is longer than 16384 characters"),
    ],
)
def test_a_skill_that_is_unusable_is_named_with_the_reason(tmp_path: Path, text: str, reason: str) -> None:
    write(tmp_path / "skills", "colon", text)
    for name in ("colon", "Colon"):
        error = refused(invoke(tmp_path, name))
        assert f"'{name}' is not a skill: colon is there ({tmp_path / 'skills' / 'colon'}), but {reason}" in error
        assert "skills are: toolgate-tools" in error


def test_a_skill_without_a_usable_file_is_named_with_the_reason(tmp_path: Path) -> None:
    skills = tmp_path / "skills"
    for name in ("empty", "lower", "link", "folder", "bytes", "deep", "secret"):
        (skills / name).mkdir(parents=True)
    (skills / "lower" / "skill.md").write_text("x")
    (skills / "link" / "SKILL.md").symlink_to("/etc/passwd")
    (skills / "folder" / "SKILL.md").mkdir()
    (skills / "bytes" / "SKILL.md").write_bytes(b"caf\xe9")
    write(skills / "deep", "inner", "Text")
    reasons = {
        "empty": "but it has no SKILL.md;",
        "lower": "but its skill.md must be called SKILL.md;",
        "link": "but its SKILL.md is a link, or not a file;",
        "folder": "but its SKILL.md is a link, or not a file;",
        "bytes": "but SKILL.md is not UTF-8;",
        "deep": "but it has no SKILL.md: the skills in it need its path as --skills;",
    }
    for name, reason in reasons.items():
        assert reason in refused(invoke(tmp_path, name))


@pytest.mark.skipif(os.geteuid() == 0, reason="root reads every file")
def test_a_skill_that_may_not_be_read_says_so(tmp_path: Path) -> None:
    path = write(tmp_path / "skills", "secret", "Text")
    path.chmod(0)
    assert "SKILL.md can't be read: Permission denied" in refused(invoke(tmp_path, "secret"))
    path.parent.chmod(0)
    assert "its SKILL.md can't be read: permission denied" in refused(invoke(tmp_path, "secret"))
    path.parent.chmod(0o700)


def test_hostile_front_matter_is_refused_at_once(tmp_path: Path) -> None:
    levels = [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]" for n in range(1, 9)]
    texts = {
        "aliases": "\n".join(["name: aliases", "description: [x] y", "a0: &a0 [x]", *levels]),
        "fields": "\n".join(f"k{number}: [x] y" for number in range(1_200)),
        "lines": "description:\n" + "\n".join("  - [x] y" for _ in range(1_500)),
        "quotes": "description: " + "'\"" * 7_000,
    }
    for name, front in texts.items():
        write(tmp_path, name, f"---\n{front}\n---\nBody")
    start = time.process_time()
    assert "aliases" not in describe(tmp_path)
    assert time.process_time() - start < 10


@pytest.mark.parametrize(
    ("body", "arguments", "text"),
    [
        ("All: $ARGUMENTS.", "foo bar", "All: foo bar."),
        ("First: $ARGUMENTS[0], then $ARGUMENTS[1].", "foo bar", "First: foo, then bar."),
        ("First: $ARGUMENTS[0].", '"foo bar" baz', "First: foo bar."),
        ("First: $ARGUMENTS[0].", "it's", "First: it's."),
        ("Third: <$ARGUMENTS[2]>", "foo", "Third: <>"),
        ("None: <$ARGUMENTS>", "", "None: <>"),
        ("From $0 to $1.", "React Vue", "From React to Vue."),
        ("From $0 to $1.", "React", "From React to $1."),
        ("It costs $1.50 or $10,000.", "a b", "It costs $1.50 or $10,000.\n\nARGUMENTS: a b"),
        ("Run `awk '{print $1}'` on $0.", "a b", "Run `awk '{print $1}'` on a."),
        ("```sh\nsh -c 'echo $0 $1'\n```\n$0", "a b", "```sh\nsh -c 'echo $0 $1'\n```\na"),
        ("$ARGUMENTS", "$ARGUMENTS[0] ${CLAUDE_SKILL_DIR} $0", "$ARGUMENTS[0] ${CLAUDE_SKILL_DIR} $0"),
        ("$ARGUMENT and $ARGS", "x", "$ARGUMENT and $ARGS\n\nARGUMENTS: x"),
        ("Run ${CLAUDE_SKILL_DIR}/a.py", "", "Run FOLDER/a.py"),
        ("```\n${CLAUDE_SKILL_DIR}/a.py\n```", "x", "```\nFOLDER/a.py\n```\n\nARGUMENTS: x"),
        ("$CLAUDE_SKILL_DIR and ${CLAUDE_SESSION_ID}", "", "$CLAUDE_SKILL_DIR and ${CLAUDE_SESSION_ID}"),
    ],
)
def test_placeholders_are_filled_in(tmp_path: Path, body: str, arguments: str, text: str) -> None:
    folder = write(tmp_path / "skills", "filled", f"---\nname: filled\ndescription: x\n---\n{body}\n").parent
    output = invoke(tmp_path, "filled", arguments)
    assert data(output)["body"] == text.replace("FOLDER", str(folder))


@pytest.mark.parametrize(
    "declared", ["arguments: [issue, branch]", "arguments: issue branch", "arguments:\n  - issue\n  - branch"]
)
def test_arguments_that_have_names_are_filled_in_also_in_code(tmp_path: Path, declared: str) -> None:
    text = (
        f"---\nname: filled\ndescription: x\n{declared}\n---\nFix `$issue`:\n```\ngit switch $branch # $0 $issues\n```"
    )
    write(tmp_path / "skills", "filled", text)
    filled = data(invoke(tmp_path, "filled", "42 hotfix"))["body"]
    assert filled == "Fix `42`:\n```\ngit switch hotfix # 42 $issues\n```"
    assert "Fix ``" in data(invoke(tmp_path, "filled"))["body"]


def test_many_placeholders_take_no_time(tmp_path: Path) -> None:
    write(tmp_path / "skills", "filled", "`$0` $0 `" * 20_000)
    start = time.process_time()
    assert len(data(invoke(tmp_path, "filled", "x"))["body"]) > 100_000
    assert time.process_time() - start < 5

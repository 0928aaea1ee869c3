"""Editors that programs start: they end at once and say what to do, unless somebody has chosen one that works here."""

import time
from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.tools.shell_commands import BOUND, ENVIRONMENT, Caller, on_caller, text_of, told

SAYS = "no editor can be shown here.\nGive the text as an option, such as git commit -m"
REPOSITORY = (
    "git init -q .; git config user.email a@b; git config user.name n; touch a; git add a; git commit -q -m one"
)
SLOW_EDITOR = "#!/bin/sh\ntouch opened\nexec sleep 600\n"
SUBJECTS = "git log --format=%s | tr '\\n' ' '"


async def prepare(me: Caller) -> None:
    """Make a repository, and editors that never end by the names of known ones."""
    (me.workspace.root / "bin").mkdir()
    for name in ("vim", "nano", "emacs"):
        path = me.workspace.root / "bin" / name
        path.write_text(SLOW_EDITOR)
        path.chmod(0o755)
    assert told(await me.bash(REPOSITORY)) == ""


@pytest.mark.parametrize(
    "command",
    [
        "git commit --allow-empty",
        "git commit --amend",
        "git tag -a v1",
        "git rebase -i --root",
        "git notes add",
        "git config -e",
        "git config core.editor bin/vim; git commit --amend",
        "git config core.editor 'nano -w'; git config sequence.editor vim; git rebase -i --root",
        "git -c core.editor=\"'$PWD/bin/vim' -f\" commit --amend",
        "unset VISUAL; EDITOR=bin/vim git commit --amend",
        '"$EDITOR" file',
        "$VISUAL +12 a/.git/x",
        'sh -c "$EDITOR file"',
    ],
)
def test_a_program_that_wants_an_editor_ends_at_once_and_says_what_to_do(tmp_path: Path, command: str) -> None:
    async def body(me: Caller) -> None:
        await prepare(me)
        before = time.monotonic()
        output = await me.bash(f"export PATH=$PWD/bin:$PATH; {command}")
        assert time.monotonic() - before < BOUND  # the editor's own wait is 600 seconds
        assert SAYS in text_of(output)
        assert not (me.workspace.root / "opened").exists()

    on_caller(body, tmp_path)


@pytest.mark.parametrize(
    ("command", "subjects"),
    [
        ("GIT_EDITOR=true git commit -q --amend", "one "),
        ("GIT_EDITOR='echo two >' git commit -q --amend", "two "),
        ("EDITOR='sed -i s/one/two/' git commit -q --amend", "two "),
        ("export VISUAL='sed -i s/one/two/'; git commit -q --amend", "two "),
        ("git config core.editor 'sed -i s/one/two/'; git commit -q --amend", "two "),
        ("git -c core.editor='sed -i s/one/two/' commit -q --amend", "two "),
        ("EDITOR='sed -i s/one/three/' git -c core.editor='sed -i s/one/two/' commit -q --amend", "two "),
        ("GIT_SEQUENCE_EDITOR='sed -i s/^pick/drop/' git rebase -q -i HEAD^", "one "),
        ("GIT_EDITOR='sed -i s/^pick/drop/' git rebase -q -i HEAD^", "one "),
        ("git config sequence.editor 'sed -i s/^pick/drop/'; git rebase -q -i HEAD^", "one "),
        ("git -c sequence.editor=: rebase -q -i HEAD^", "one "),
    ],
)
def test_an_editor_that_a_command_or_git_names_edits(tmp_path: Path, command: str, subjects: str) -> None:
    async def body(me: Caller) -> None:
        await prepare(me)
        if "rebase" in command:
            await me.bash("git commit -q --allow-empty -m two")
        output = await me.bash(f"{command}; {SUBJECTS}")
        kept = "two one " if "sequence.editor=:" in command else subjects
        assert told(output) == kept

    on_caller(body, tmp_path)


@pytest.mark.parametrize(
    ("own", "is_used"),
    [
        ({"GIT_EDITOR": "sed -i s/one/two/"}, True),
        ({"EDITOR": "sed -i s/one/two/"}, True),
        ({"VISUAL": "sed -i s/one/two/", "EDITOR": "vim"}, True),
        ({"EDITOR": "vim -c 'touch'"}, None),
        ({"EDITOR": "emacs --batch", "DISPLAY": ""}, None),
        ({"EDITOR": "vim"}, False),
        ({"GIT_EDITOR": "/usr/bin/vim.basic -f", "VISUAL": "nvim"}, False),
        ({"EDITOR": "emacs", "DISPLAY": ""}, False),
        ({"EDITOR": "emacs -nw", "DISPLAY": ":0"}, False),
    ],
)
def test_a_persons_own_editor_is_used_unless_it_needs_a_terminal(
    tmp_path: Path, own: Mapping[str, str], is_used: bool | None
) -> None:
    async def body(me: Caller) -> None:
        name, value = next(iter(own.items()))
        shown = told(await me.bash(f'printf %s "${name}"'))
        assert (shown == value) is (is_used is not False)
        if is_used is not None:
            await prepare(me)
            output = await me.bash(f"git commit -q --amend; {SUBJECTS}")
            assert told(output).endswith("two " if is_used else "one ")
            assert (SAYS in text_of(output)) is not is_used

    on_caller(body, tmp_path, {**ENVIRONMENT, **own})


def test_an_editor_that_a_command_starts_itself_is_named_after_its_timeout(tmp_path: Path) -> None:
    async def body(me: Caller) -> None:
        output = await me.bash("echo 'Vim: Warning: Output is not to a terminal'; exec sleep 600", timeout=500)
        assert output.is_error
        assert text_of(output).endswith("no editor can be shown here: change files by commands, such as sed -i")

    on_caller(body, tmp_path)


def test_a_background_task_waits_for_no_editor(tmp_path: Path) -> None:
    async def body(me: Caller) -> None:
        await prepare(me)
        task = (await me.call("BackgroundBash", command="git commit --amend")).structured["task_id"]
        assert await me.workspace.wait(task, BOUND)
        assert SAYS in (await me.call("ReadBgOutput", task_id=task)).structured["output"]

    on_caller(body, tmp_path)


def test_editors_are_named_in_a_folder_with_spaces(tmp_path: Path) -> None:
    odd = tmp_path / "a 'b' $c"
    odd.mkdir()

    async def body(me: Caller) -> None:
        await prepare(me)
        for command in ("git commit --amend", "EDITOR='sed -i s/one/two/' git commit -q --amend", SUBJECTS):
            output = await me.bash(command)
        assert told(output) == "two "

    on_caller(body, odd)

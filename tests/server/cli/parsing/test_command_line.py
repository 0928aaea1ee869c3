"""Parsing command lines: commands, options before and after them, arguments and help."""

import inspect
import re
from pkgutil import resolve_name
from typing import Any

import pytest

from tests.needed_features import list_deleted, require_for
from toolgate.server.base.errors import UsageError
from toolgate.server.base.version import VERSION
from toolgate.server.cli import main
from toolgate.server.cli.parsing.command import Command
from toolgate.server.cli.parsing.command_line import parse_words
from toolgate.server.cli.parsing.commands import COMMANDS, sub_commands
from toolgate.server.config.load import read_flags
from toolgate.server.config.options import OPTIONS


@pytest.mark.parametrize("command", COMMANDS.values(), ids=lambda command: command.name)
def test_each_command_runs_a_function_that_takes_its_options_arguments_and_flags(command: Command) -> None:
    words = [*command.name.split(), *(f"{argument.strip('[]…')}=1" for argument in command.arguments)]
    for flags in ((), *((each.flag.flag, "1") for each in command.variants)):
        asked = parse_words([*words, *flags])
        signature = inspect.signature(resolve_name(f"toolgate.server.{asked.run}"))
        signature.bind(*([None] if command.takes_config else []), **asked.parameters)


@pytest.mark.parametrize(
    ("words", "command", "options", "parameters"),
    [
        ("serve -t --port 1", "serve", {"http": "true", "port": "1"}, {}),
        ("--state s user add ada", "user add", {"state": "s"}, {"name": "ada"}),
        ("user --state s add ada --state t", "user add", {"state": "t"}, {"name": "ada"}),
        ("user add -- --ada", "user add", {}, {"name": "--ada"}),
        ("token revoke -- grant -x", "token revoke grant", {}, {"id": "-x"}),
        ("--name tools tools", "tools", {"name": "tools"}, {"url": None}),
        ("-vp plugins tools -pmore", "tools", {"verbose": "true", "plugins": ["plugins", "more"]}, {"url": None}),
        (
            "call --url=u Bash command=a --url u2",
            "call",
            {},
            {"tool": "Bash", "arguments": ("command=a",), "url": "u2", "json": False, "output": None},
        ),
        ("--json doctor", "doctor", {}, {"json": True}),
        ("backup -", "backup", {}, {"file": "-", "with_workspaces": False}),
        ("user add ada --help", "help", {}, {"commands": ["user", "add"]}),
        ("help user add", "help", {}, {"commands": ("user", "add")}),
        ("-V call", "version", {}, {}),
    ],
)
def test_a_command_line_is_read(words: str, command: str, options: dict[str, Any], parameters: dict[str, Any]) -> None:
    read = parse_words(words.split())
    assert (read.command.name, read.options, read.parameters) == (command, options, parameters)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("--prot 80", "unknown option --prot (did you mean --port?)"),
        ("tools --plugin x", "did you mean --plugins?"),
        ("--hlep", "unknown option --hlep (did you mean --help?)"),
        ("-help", "unknown option -h in -help (did you mean --help?)"),
        ("-tv567", "unknown option -5 in -tv567\nusage: "),
        ("doctr", "unknown command 'doctr' (did you mean doctor?)"),
        ("user ad ada", "user: unknown command 'ad' (did you mean add?)"),
        ("user", "user: COMMAND is missing: add, list, remove, passwd"),
        ("user add", "user add: NAME is missing\nusage: toolgate user add NAME [OPTIONS]"),
        ("config", "config: CLIENT is missing: claude-desktop, claude-code, cursor, "),
        ("user list --port 99", "user list: --port does not belong here (it belongs to serve, doctor, health)"),
        ("tools -t", "tools: -t does not belong here (it belongs to serve, doctor)"),
        (
            "login http://127.0.0.1/mcp --state x",
            "login: --state does not belong here (it belongs to serve, demo, call, ",
        ),
        ("version --config x", " more)\nusage: toolgate version"),
        ("--port", "--port needs a value"),
        ("-vp --verbose", "-vp needs a value"),
        ("--verbose=yes", "--verbose takes no value"),
        ("backup ''", "backup: an argument is empty"),
        ("demo extra", "demo: unexpected 'extra'"),
        ("tools --url http://127.0.0.1/mcp --hold 3", "--hold has no effect with --url"),
    ],
)
def test_a_wrong_command_line_is_refused_with_a_remedy(words: str, said: str) -> None:
    require_for(words)
    with pytest.raises(UsageError) as refused:
        parse_words([word.strip("'") for word in words.split()])
    assert said in str(refused.value)


def test_a_word_too_many_is_not_repeated_where_it_may_be_a_password() -> None:
    with pytest.raises(UsageError, match="user add: takes NAME and nothing else") as refused:
        parse_words(["user", "add", "ada", "correct-horse"])
    assert "correct-horse" not in str(refused.value)


@pytest.mark.parametrize(
    "words",
    [
        ["-t", "--port", "1"],
        ["-n", "x", "--plugins=a", "-p", "b"],
        ["--config", "c", "-v"],
        [],
        ["--name", ""],
        ["-n=x"],
    ],
)
def test_plain_options_are_read_alike_with_and_without_click(words: list[str]) -> None:
    assert read_flags(words) == parse_words(words).options


@pytest.mark.parametrize(
    "words", [["tools"], ["--help"], ["--nonsense"], ["--port"], ["--port", "-1"], ["-tv"], ["--http=1"], ["--"]]
)
def test_what_is_more_than_plain_options_is_left_to_click(words: list[str]) -> None:
    assert read_flags(words) is None


@pytest.mark.parametrize("words", [["version"], ["-V"], ["--version"], ["tools", "--version"]])
def test_the_version_is_told_in_every_way(capsys: pytest.CaptureFixture[str], words: list[str]) -> None:
    assert main.run(words) == 0
    assert capsys.readouterr().out == f"toolgate {VERSION}\n"


@pytest.mark.parametrize("words", [["help"], ["--help"], ["-h"]])
def test_help_fits_a_screen_and_has_each_command_once(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, words: list[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    assert main.run(words) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) <= 30 and max(map(len, lines)) <= 80
    commands = lines[lines.index("Commands:") + 1 : lines.index("Options:") - 1]
    named = [name for line in commands for name in line[2:22].split("  ")[0].rstrip().split(", ")]
    assert sorted(named) == sorted(sub_commands(""))
    for flag in ("-t", "-s", "--host", "--port", "--public-url", "--sandbox", "-p", "--state"):
        assert any(re.search(rf"^  .*(?<!\S){flag}\b", line) for line in lines), flag


@pytest.mark.parametrize("words", [["help", "serve"], ["serve", "--help"]])
def test_the_help_of_serve_has_every_option_in_a_group(capsys: pytest.CaptureFixture[str], words: list[str]) -> None:
    assert main.run(words) == 0
    told = capsys.readouterr().out
    assert told.index("\nServing:\n  -t, --http ") < told.index("\nWeb tools:\n")
    for option in OPTIONS:
        assert (f"{option.flag} " in told) is not option.is_planned, option.flag


@pytest.mark.parametrize("words", [["events"], ["events", "follow"], ["call"], ["tools"], ["doctor"], ["install"]])
def test_the_help_of_a_command_that_starts_a_server_leaves_its_options_to_serve(
    capsys: pytest.CaptureFixture[str], words: list[str]
) -> None:
    require_for(" ".join(words))
    assert main.run([*words, "--help"]) == 0
    told = capsys.readouterr().out
    if words != ["doctor"] or "remote_checks" not in list_deleted():
        assert "--url URL" in told
    assert "--state DIR" in told and "toolgate serve --help" in told
    assert "--searxng" not in told and "--sandbox-uids" not in told and len(told.splitlines()) < 40


@pytest.mark.parametrize("words", [["help", "user", "add"], ["user", "add", "--help"], ["--help", "user", "add"]])
def test_the_help_of_a_command_is_about_that_command(capsys: pytest.CaptureFixture[str], words: list[str]) -> None:
    assert main.run(words) == 0
    told = capsys.readouterr().out
    assert told.startswith("Usage: toolgate user add NAME [OPTIONS]\n")
    assert "toolgate user add ada" in told and "--state DIR" in told and "--port" not in told


def test_the_help_of_a_group_lists_its_commands(capsys: pytest.CaptureFixture[str]) -> None:
    assert main.run(["token", "revoke", "--help"]) == 0
    assert "token revoke grant" in capsys.readouterr().out


def test_help_needs_no_configuration_that_works(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TOOLGATE_CONFIG", "/no/such/file")
    assert main.run(["tools", "--help"]) == 0
    assert main.run(["help", "nonsense"]) == 2
    assert "unknown command 'nonsense'" in capsys.readouterr().err

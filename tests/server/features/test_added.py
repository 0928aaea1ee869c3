"""A feature that is added takes no name of another: the program does not start with it."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.clients.raw_client import PATIENCE
from tests.server.features.reduced_copy import ROWS, copy_without

ROW = '    FeatureRow(switches=(), options="added_options:OPTIONS", commands="added_commands:COMMANDS"),\n'
OPTIONS = "from toolgate.server.config.option import Option\nOPTIONS = {{'Added': ({})}}\n"
COMMANDS = (
    "from toolgate.server.cli.parsing.command import Command, FeatureCommands\nCOMMANDS = FeatureCommands(({}))\n"
)
PULSE = "Option('pulse', 'x', metavar='X'),", "Command('pulse', 'x', 'x'),"


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Make a copy of the program with the row of a feature more, and return its folder."""
    package = tmp_path_factory.mktemp("program") / "toolgate"
    copy_without((), package)
    rows = package / ROWS
    text = rows.read_text().rstrip()
    assert text.endswith(")")
    rows.write_text(f"{text[:-1]}{ROW})\n")
    return package


def run(package: Path, options: str, commands: str) -> "subprocess.CompletedProcess[str]":
    """Run a command that reads the options, with a feature that has these options and commands."""
    features = package / "server/features"
    (features / "added_options.py").write_text(OPTIONS.format(options))
    (features / "added_commands.py").write_text(COMMANDS.format(commands))
    words = (sys.executable, "-B", "-m", "toolgate.server", "user", "list", "--state", str(package.parent / "state"))
    environment = {**os.environ, "PYTHONPATH": str(package.parent)}
    return subprocess.run(words, env=environment, capture_output=True, text=True, timeout=PATIENCE)


@pytest.mark.parametrize(
    ("options", "commands", "expected"),
    [
        ("Option('port', 'x', metavar='X'),", "", "there are two options port"),
        ("Option('pulse', 'x', metavar='X', short='-n'),", "", "there are two options -n"),
        ("Option('tables', 'x', metavar='X'),", "", "there are two attributes of Config tables"),
        ("Option('is-remote', 'x', metavar='X'),", "", "there are two attributes of Config is_remote"),
        ("", "Command('call', 'x', 'x'),", "there are two commands call"),
    ],
)
def test_a_name_of_another_is_refused(package: Path, options: str, commands: str, expected: str) -> None:
    done = run(package, options, commands)
    assert done.returncode == 1 and expected in done.stderr.splitlines()[-1], done.stderr


def test_names_of_its_own_are_taken(package: Path) -> None:
    done = run(package, *PULSE)
    assert done.returncode == 0, done.stderr

"""The README's code blocks, run as a reader would."""

import contextlib
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

from tests.test_cli import listening
from tests.wire import ROOT

README = (ROOT / "README.md").read_text()


def blocks(language: str) -> list[str]:
    found: list[str] = re.findall(rf"```{language}\n(.*?)```", README, re.S)
    return found


def test_every_shell_line_of_the_readme_works(tmp_path: Path) -> None:
    (tmp_path / ".venv" / "bin").mkdir(parents=True)
    (tmp_path / ".venv" / "bin" / "toolgate").symlink_to(Path(sys.executable).with_name("toolgate"))
    (tmp_path / "deploy").symlink_to(ROOT / "deploy")
    (tmp_path / "my-plugins").mkdir()
    (plugin,) = blocks("python")
    (tmp_path / "my-plugins" / "words.py").write_text(plugin)
    targets = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), re.M))
    lines = [line.partition("#")[0].strip() for block in blocks("sh") for line in block.splitlines()]
    environment = {"PATH": os.environ["PATH"], "HOME": str(tmp_path)}
    ran = 0
    base = ""
    with contextlib.ExitStack() as running:
        for line in filter(None, lines):
            if line.startswith("make "):
                assert set(line.split()[1:]) <= targets, line  # this test is part of one of them
                continue
            if line.endswith("&"):  # a server, here on a port that is surely free
                words = [*shlex.split(line.removesuffix("&")), "--port", "0"]
                base = running.enter_context(listening(tmp_path, *words))
                continue
            told = line.replace("http://127.0.0.1:8080", base) if base else line
            done = subprocess.run(
                ["bash", "-c", told], cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=60
            )
            assert done.returncode == 0, (line, done.stderr)
            assert done.stdout.strip(), line
            ran += 1
            if "my-plugins" in line:
                assert "count_words(text*, least)" in done.stdout
    assert ran >= 5


def test_the_plugin_of_the_readme_does_what_it_says(tmp_path: Path) -> None:
    (plugin,) = blocks("python")
    (tmp_path / "plugins").mkdir()
    (tmp_path / "plugins" / "words.py").write_text(plugin)
    command = [str(Path(sys.executable).with_name("toolgate")), "-p", "plugins", "call", "count_words"]
    environment = {"PATH": os.environ["PATH"], "HOME": str(tmp_path)}
    run = {"cwd": tmp_path, "env": environment, "capture_output": True, "text": True, "timeout": 60}
    done = subprocess.run([*command, "text=one two three", "least=4"], **run)  # type: ignore[call-overload]
    assert (done.returncode, done.stdout) == (0, "1\n")
    done = subprocess.run([*command, "text= "], **run)  # type: ignore[call-overload]
    assert done.returncode == 1 and "the text is empty" in done.stdout


def test_every_option_of_the_readme_is_one_and_none_is_missing() -> None:
    from toolgate.server.options import OPTIONS

    table = README[README.index("| flag |") :]
    told = set(re.findall(r"`(--[a-z-]+)", table[: table.index("\n\n")]))
    assert told == {option.flag for option in OPTIONS if not option.later} | {"--config"}

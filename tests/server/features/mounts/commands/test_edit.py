"""`toolgate mount add`, `remove` and `list`: the config file gets the mount, and all else in it stays."""

import json
import stat
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from toolgate.server.cli import main

FILE = '# mine\nport = 8081 # why\n\n[mounts.old] # first\nurl = "https://old" # kept\n\n# tail\n'
Run = Callable[..., str]


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the path of the person's own config file, which is missing."""
    for name in ("TOOLGATE_CONFIG", "XDG_CONFIG_HOME", "TOKEN"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    return tmp_path / ".config/toolgate/config.toml"


@pytest.fixture
def run(file: Path, capsys: pytest.CaptureFixture[str]) -> Run:
    def run_command(*words: str, code: int = 0) -> str:
        """Return what `toolgate mount …` prints, errors too."""
        assert main.run(("mount", *words)) == code, capsys.readouterr()
        printed = capsys.readouterr()
        return printed.out + printed.err

    return run_command


def write(file: Path, text: str, mode: int = 0o600) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)
    file.chmod(mode)


def read(file: Path) -> Any:
    return tomllib.loads(file.read_text())["mounts"]


def test_a_command_is_added_to_a_new_private_file(file: Path, run: Run) -> None:
    words = ("--env", "A=b=c", "--env", "KEY=", "--per", "session", "--scope", "files", "--tools", "a*,!ab")
    shown = run("add", "files", *words, "--tools", "b", "--no-test", "--", "sh", "-c", "x y", "--port")
    assert shown == f"Added files to {file}\n"
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert read(file) == {
        "files": {
            "command": "sh",
            "args": ["-c", "x y", "--port"],
            "env": {"A": "b=c", "KEY": ""},
            "per": "session",
            "scope": "files",
            "tools": ["a*", "!ab", "b"],
        }
    }


def test_where_a_command_may_go_is_added(file: Path, run: Run, tmp_path: Path) -> None:
    words = ("--network", "a.example", "--network", "*.b.example", "--files", "/srv/in", "--files", "/srv/out:rw")
    run("add", "far", *words, "--no-test", "--", "sh")
    places = {"network": ["a.example", "*.b.example"], "files": ["/srv/in", "/srv/out:rw"]}
    assert read(file) == {"far": {"command": "sh", **places}}
    words = ("--replace", "--no-test", "--state", str(tmp_path / "state"), "--files", str(tmp_path / "state" / "keys"))
    assert "mount add: --files: " in run("add", "far", *words, "--", "sh", code=2)
    assert read(file) == {"far": {"command": "sh", **places}}


def test_a_url_is_added_and_all_else_in_the_file_stays(file: Path, run: Run, tmp_path: Path) -> None:
    named = tmp_path / "named.toml"
    write(named, FILE, 0o640)
    words = ("--url", "https://a/mcp", "--header", "Authorization: Bearer x:y", "--header", "X-Key=a=b")
    run("add", "web", *words, "--no-test", "--config", str(named))
    text = named.read_text()
    assert text.startswith(FILE.removesuffix("\n# tail\n")) and "\n# tail\n" in text
    assert read(named)["web"] == {
        "url": "https://a/mcp",
        "headers": {"Authorization": "Bearer x:y", "X-Key": "a=b"},
    }
    assert stat.S_IMODE(named.stat().st_mode) == 0o640 and not file.exists()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["named.toml"], "no copy of keys"


def test_a_name_that_is_taken_needs_replace(file: Path, run: Run) -> None:
    write(file, FILE)
    assert "already has a mount old: --replace replaces it" in run("add", "old", "--", "sh", code=2)
    assert file.read_text() == FILE
    run("add", "old", "--replace", "--", "true")  # it ends: one that says nothing is tried for a minute
    assert file.read_text() == FILE.replace('url = "https://old" # kept', 'command = "true"')


def test_removing_leaves_all_else(file: Path, run: Run) -> None:
    write(file, FILE + '\n[mounts.other]\ncommand = "x"\nenv.A = "b"\n[mounts.other.headers]\nb = "c"\n')
    assert run("remove", "other") == f"Removed other from {file}\n"
    assert file.read_text() == FILE
    run("remove", "old")
    assert file.read_text() == "# mine\nport = 8081 # why\n\n# tail\n"
    assert "has no mount 'old'" in run("remove", "old", code=2)


def test_a_faulty_mount_can_be_removed(file: Path, run: Run) -> None:
    write(file, '[mounts."My Server"]\ncomand = "x"\n')
    assert "(did you mean My Server?)" in run("remove", "My Serve", code=2)
    run("remove", "My Server")
    assert file.read_text() == ""


WRONG = {
    "add A -- sh": "up to 15 small letters",
    "add a": "give either the command of the server, behind --, or its --url",
    "add a --url https://a -- sh": "give either",
    "add a --url ftp://a": "url: must be an http or https URL",
    "add a --url https://u:hunter2@a": "must not carry a name or a password",
    "add a --url https://a --env A=b": "env: has no effect beside url",
    "add a --header A=b -- sh": "headers: has no effect beside command",
    "add a --url https://a --header Host=b": "Host is written by Toolgate",
    "add a --env hunter2 -- sh": "--env must be NAME=VALUE",
    "add a --env A:hunter2 -- sh": "--env must be NAME=VALUE",
    "add a --env A=1 --env A=2 -- sh": "--env A is given twice",
    "add a --per user -- sh": "per: must be person, session or all",
    "add a --tools !a,* -- sh": 'write "*" first',
    "add a --env A=${input:b} -- sh": "${input:b} is to be set by you",
    "add a npx -y": "options of COMMAND stand behind --",
    "add a npx --yes": "options of COMMAND stand behind --",
    "add": "NAME is missing",
    "remove none": "has no mount 'none'",
    "lst": "did you mean list?",
    "": "mount: COMMAND is missing: add, remove, ",
}


@pytest.mark.parametrize("line", WRONG)
def test_bad_input_is_refused_with_2_and_writes_nothing(line: str, file: Path, run: Run) -> None:
    shown = run(*line.split(), code=2)
    assert WRONG[line] in shown and "hunter2" not in shown
    assert not file.exists()


def test_a_file_that_can_not_be_edited_is_a_failure(file: Path, run: Run) -> None:
    text = 'mounts = { a = { command = "x" } }\n'
    write(file, text)
    assert "can't be written without changing more" in run("add", "b", "--", "sh", code=1)
    write(file, FILE, 0o400)
    assert "is read-only" in run("add", "b", "--", "sh", code=1)
    assert file.read_text() == FILE


def test_what_may_be_missing_is_noted(file: Path, run: Run) -> None:
    shown = run("add", "a", "--env", "A=${env:TOKEN}", "--", "no-such-program")
    assert "note: [mounts.a] env: A: the variable TOKEN is not set in the server's environment" in shown
    assert "note: there is no program no-such-program here" in run("add", "b", "--", "no-such-program")
    assert read(file)["a"]["env"] == {"A": "${env:TOKEN}"}


def test_the_list_shows_mounts_and_faults_but_no_keys(file: Path, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KEY", "hunter2")
    assert run("list") == f"{file} mounts no server: toolgate mount add adds one\n"
    write(
        file,
        '[mounts.web]\nurl = "https://a/mcp?key=hunter2"\nheaders = { K = "hunter2" }\n'
        '[mounts."bad\\u001b"]\ncomand = "x"\n[mounts.files]\ncommand = "npx"\nargs = ["a b", "${env:KEY}"]\n'
        'per = "all"\nenv = { K = "hunter2" }\n',
    )
    shown = run("list")
    lines = [line.split() for line in shown.splitlines()[:4]]
    assert lines == [
        ["NAME", "STATE", "SERVER", "PER", "SCOPE"],
        ["web", "ok", "https://a/mcp?…", "-", "tools:plugins"],
        ["files", "ok", "npx", "'a", "b'", "'${env:KEY}'", "all", "tools:plugins"],
        ["bad\\x1b", "CONFIG_NAME", "-", "-", "-"],
    ]
    assert "CONFIG_UNKNOWN_KEY: " in shown and "did you mean command?" in shown
    assert "hunter2" not in shown + run("list", "--json") and "\x1b" not in shown
    listed = json.loads(run("list", "--json"))
    assert [mount["name"] for mount in listed["mounts"]] == ["web", "files"] and listed["file"] == str(file)
    assert [(fault["name"], fault["code"]) for fault in listed["faults"]] == [
        ("bad\x1b", "CONFIG_NAME"),
        ("bad\x1b", "CONFIG_UNKNOWN_KEY"),
    ]


@pytest.mark.parametrize("name", ["{folder}", "..", "../../victim"])
def test_removing_a_faulty_name_removes_its_table_alone(file: Path, run: Run, tmp_path: Path, name: str) -> None:
    victim = tmp_path / "victim"
    victim.mkdir()
    (victim / "kept").touch()
    name = name.replace("{folder}", str(victim))
    state = tmp_path / "state"
    (state / "mounts" / "other").mkdir(parents=True)
    write(file, f'[mounts."{name}"]\ncommand = "x"\n')
    run("remove", name, "--state", str(state))
    assert (victim / "kept").exists() and (state / "mounts" / "other").is_dir()
    assert "mounts" not in tomllib.loads(file.read_text())

"""The PATH of the login shell: taken where a desktop program started the server, and nowhere else."""

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.clients.raw_client import Server
from tests.clients.raw_http_client import Http, Site
from toolgate.tools.workspace.commands.login_path import find_path, join_paths

Start = Callable[..., Server]
BARE = "/usr/bin:/bin:/usr/sbin:/sbin"
PROFILE = """\
echo "Welcome back"; echo noise >&2; read -r answer
touch "$HOME/profile-ran"
export SECRET=word PATH="$HOME/own bin:$PATH:relative"
"""
FIND = 'mytool; echo "${SECRET-none}"; echo $PATH'


def make_home(folder: Path, profile: str, name: str = ".bash_profile") -> Path:
    """Make a home with a profile and a program of its own, and return it."""
    home = folder / "home"
    (home / "own bin").mkdir(parents=True)
    (home / name).write_text(profile)
    tool = home / "own bin" / "mytool"
    tool.write_text("#!/bin/sh\necho found\n")
    tool.chmod(0o755)
    return home


@pytest.mark.parametrize(
    ("name", "profile", "environment"),
    [
        (".bash_profile", PROFILE, {"SHELL": "/bin/bash"}),
        (".bash_profile", f"case $- in *i*) ;; *) return ;; esac\n{PROFILE}", {"SHELL": "/bin/bash"}),
        (".bash_profile", f"case $- in *i*) exec cat ;; esac\n{PROFILE}", {"SHELL": "/bin/bash"}),
        (".profile", PROFILE, {"SHELL": "/bin/sh"}),
        (".profile", PROFILE, {"SHELL": "/bin/bash", "PATH": "/usr/local/bin:/usr/bin:/bin:/snap/bin:"}),
    ],
)
def test_a_server_of_a_desktop_program_finds_what_the_login_shell_finds(
    start: Start, tmp_path: Path, name: str, profile: str, environment: dict[str, str]
) -> None:
    home = make_home(tmp_path, profile, name)
    environment = {"PATH": BARE, **environment}
    server = start(env=environment)
    found, secret, path, _ = server.text("Bash", {"command": FIND}).split("\n")
    assert (found, secret) == ("found", "none")
    folders = path.split(":")
    assert folders[0] == f"{home}/own bin" and "relative" not in folders
    assert {*environment["PATH"].split(":")} - {""} <= {*folders}
    (home / "profile-ran").unlink()
    assert server.text("Bash", {"command": "mytool"}) == "found\n"
    task = server.call("BackgroundBash", {"command": "mytool; touch ended"})["structuredContent"]["task_id"]
    server.text("Bash", {"command": "until [ -e ended ]; do sleep 0.01; done"})
    assert server.text("ReadBgOutput", {"task_id": task}).startswith("found\n")
    assert not (home / "profile-ran").exists()  # it runs once


@pytest.mark.parametrize("profile", ["exec sleep 600", "trap '' TERM HUP; sleep 600 & wait", "exit 3", "unset PATH"])
def test_a_profile_that_hangs_or_fails_delays_the_first_command_alone(
    start: Start, tmp_path: Path, profile: str
) -> None:
    make_home(tmp_path, profile)
    server = start(env={"PATH": BARE, "SHELL": "/bin/bash"})
    for _ in range(2):
        assert server.text("Bash", {"command": "echo $PATH"}) == f"{BARE}\n"


@pytest.mark.parametrize(
    "environment",
    [
        {"PATH": f"/opt/mine/bin:{BARE}"},
        {"PATH": BARE, "SHELL": "/usr/sbin/nologin"},
        {"PATH": BARE, "HOME": "/nowhere"},
    ],
)
def test_a_path_that_somebody_has_chosen_stays(start: Start, tmp_path: Path, environment: dict[str, str]) -> None:
    home = make_home(tmp_path, PROFILE)
    server = start(env={"SHELL": "/bin/bash", **environment})
    assert server.text("Bash", {"command": "echo $PATH"}) == f"{environment['PATH']}\n"
    assert not (home / "profile-ran").exists()


def test_a_server_for_others_runs_no_profile(listen: Callable[..., Site], tmp_path: Path) -> None:
    home = make_home(tmp_path, PROFILE)
    site = listen("--sandbox", "none", "-t", env={"PATH": BARE, "SHELL": "/bin/bash"})
    client = Http(site, "2025-11-25", {}, None, owned=False)
    client.shake_hands()
    assert client.text("Bash", {"command": "echo $PATH"}) == f"{BARE}\n"
    client.close()
    assert not (home / "profile-ran").exists()


@pytest.mark.parametrize(
    ("output", "path"),
    [
        (b"hello\ntoolgate-path:/a:/b\n", "/a:/b"),
        (b"toolgate-path:/early\nno newline\ntoolgate-path:/a b\xff\nbye", "/a b\udcff"),
        (b"toolgate-path:relative\n", ""),
        (b"toolgate-path:/a\0b\n", ""),
        (b"toolgate-path:/" + b"x" * 40_000 + b"\n", ""),
        (b"", ""),
    ],
)
def test_the_path_is_found_amid_what_a_profile_prints(output: bytes, path: str) -> None:
    assert find_path(output) == path


def test_paths_are_joined_without_relative_folders_and_repetitions() -> None:
    assert join_paths("/a:b:/c:/a:", "/c::/d") == "/a:/c:/d"

"""What a shell promises, through each transport and in both eras."""

from collections.abc import Callable

import pytest

from tests.clients.raw_client import STATELESS, Server

Connect = Callable[..., Server]


def bash(server: Server, command: str) -> str:
    return server.text("Bash", {"command": command})


@pytest.mark.parametrize("revision", ["2025-11-25", STATELESS])
def test_the_previous_directory_is_the_callers_own(connect: Connect, revision: str) -> None:
    server = connect(fresh=True, revision=revision)
    assert "OLDPWD not set" in bash(server, "cd -")
    root = bash(server, "pwd").strip()
    bash(server, "mkdir sub; cd sub")
    assert bash(server, "cd -; pwd") == f"{root}\n" * 2
    assert bash(server, "cd -; echo ~-") == f"{root}/sub\n{root}\n"
    bash(server, "cd /; cd - >/dev/null")
    assert bash(server, "echo $OLDPWD; pwd") == f"/\n{root}/sub\n"


def test_two_sessions_have_each_its_own_previous_directory(connect: Connect) -> None:
    one = connect()
    bash(one, "cd /bin; cd /")
    other = connect(fresh=True)
    assert "OLDPWD not set" in bash(other, "cd -")
    assert bash(one, "cd - >/dev/null; pwd") in ("/bin\n", "/usr/bin\n")


def test_a_plan_has_temporary_files(connect: Connect) -> None:
    server = connect(fresh=True)
    server.text("PlanMode", {"action": "enter", "goal": "look"})
    assert bash(server, "seq 100000 | sort -n -S 100K | tail -1") == "100000\n"
    assert bash(server, f"cat <<END | wc -c\n{'y' * 100_000}\nEND") == "100001\n"
    assert "read-only while a plan is active" in server.text("Bash", {"command": "touch file"})


def test_an_editor_ends_at_once(connect: Connect) -> None:
    server = connect(fresh=True)
    bash(server, "git init -q repository; cd repository; git config user.name n; git config user.email a@b")
    assert "git commit -m" in bash(server, "git commit --allow-empty\r\n")

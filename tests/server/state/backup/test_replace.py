"""Restoring over a state in use: only what the backup contains is replaced, and each file of a person survives."""

import os
import re
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.clients.raw_client import COMMAND
from tests.clients.raw_http_client import site, spoken
from tests.server.cli.test_cli import run
from tests.server.state import fixture
from tests.server.state.backup.test_backup import ADA, backed_up, restored, state, tree
from tests.servers.postgres import Postgres
from toolgate.server.state import lock
from toolgate.server.state.backup import restore

BOB = "u-" + "b0" * 20
QUICKSTART = Path(__file__).parents[4] / "docs" / "quickstart-hosted.md"
ARCHIVE = f"archive/{BOB}-20260101T000000Z.tar.gz"
THEIRS = {  # what people have at the time of the restore
    f"workspaces/{ADA}/thesis.txt": "newer",
    f"workspaces/{BOB}/precious.txt": "his",
    f"spool/{BOB}/1/output": "what his command said",
    f"leaving/{BOB}-20260101T000000Z/workspace/left.txt": "being archived",
    ARCHIVE: "an archive",
}


def write(folder: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        (folder / name).parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        (folder / name).write_text(text)


def server_state(folder: Path) -> None:
    fixture.made(folder)
    write(folder, {f"workspaces/{ADA}/thesis.txt": "older", f"uses/{ADA}": ""})


def node_state(folder: Path) -> None:
    write(folder, {"node.name": "one", "keys/database": "k" * 32, f"workspaces/{ADA}/thesis.txt": "older"})


@pytest.mark.brief("server_state-node_state-with workspaces", "node_state-server_state-without workspaces")
@pytest.mark.parametrize("words", [(), ("--with-workspaces",)], ids=["without workspaces", "with workspaces"])
@pytest.mark.parametrize("over", [server_state, node_state])
@pytest.mark.parametrize("of", [server_state, node_state])
def test_each_file_of_a_person_survives_a_restore(
    tmp_path: Path, of: Callable[[Path], None], over: Callable[[Path], None], words: tuple[str, ...]
) -> None:
    earlier, used = tmp_path / "earlier", tmp_path / "used"
    of(earlier)
    over(used)
    write(used, THEIRS)
    assert run(tmp_path, "backup", "b", "--state", str(earlier), *words).returncode == 0
    done = run(tmp_path, "restore", "b", "--replace", "--state", str(used))
    assert done.returncode == 0 and "remove" not in done.stderr, done
    expect_survival(tmp_path, used, done.stderr, "older" if words else "newer")


def expect_survival(folder: Path, used: Path, printed: str, thesis: str) -> None:
    """Check what is in place, and that the commands of `doctor` bring back the rest."""
    names = dict(THEIRS)
    newer = names.pop(f"workspaces/{ADA}/thesis.txt")
    assert {name: (used / name).read_text() for name in names} == names
    assert (used / "workspaces" / ADA / "thesis.txt").read_text() == thesis
    if thesis == newer:
        assert "people's files that the backup replaced" not in printed and find_commands(folder, used) is None
        return
    assert f": workspaces/{ADA}" in printed and "toolgate doctor shows how to move them back" in printed
    for _ in range(9):  # each shows a few
        commands = find_commands(folder, used)
        if commands is not None:
            subprocess.run(["/bin/sh", "-ec", commands], check=True)
    assert find_commands(folder, used) is None
    assert newer in [path.read_text() for path in (used / "workspaces").rglob("thesis.txt")]


def find_commands(folder: Path, used: Path) -> str | None:
    """Return the commands by which `doctor` moves files of people back."""
    said = " ".join(run(folder, "doctor", "--browser", "none", "--state", str(used)).stdout.split())
    found = re.search(r"stop the server and run: (.+?)(?:; then run| ok | note | FAIL | skip )", said)
    return found and found[1]


@pytest.mark.brief("with workspaces")
@pytest.mark.parametrize("words", [(), ("--with-workspaces",)], ids=["without workspaces", "with workspaces"])
def test_each_file_of_a_person_survives_on_the_way_to_postgresql_and_back(
    tmp_path: Path, postgres: Postgres, words: tuple[str, ...]
) -> None:
    used, database = tmp_path / "used", ("--database", postgres.create_database())
    server_state(used)
    options = ("--state", str(used))
    assert run(tmp_path, "backup", "one", *options, *words).returncode == 0
    write(used, THEIRS)
    assert run(tmp_path, "restore", "one", "--replace", *options, *database).returncode == 0  # over files of SQLite
    write(used, {"state.db": "another database"})
    done = run(tmp_path, "restore", "one", "--replace", *options, *database)  # over both
    assert done.returncode == 0, done
    expect_survival(tmp_path, used, done.stderr, "older" if words else "newer")
    assert len(list(used.glob("replaced-*/postgresql/state.db"))) == 1
    assert run(tmp_path, "backup", "two", *options, *database, *words).returncode == 0
    write(used, THEIRS)
    for aside in used.glob("replaced-*"):
        shutil.rmtree(aside)
    done = run(tmp_path, "restore", "two", "--replace", *options)
    assert done.returncode == 0, done
    expect_survival(tmp_path, used, done.stderr, "older" if words else "newer")
    assert "ada" in run(tmp_path, "user", "list", *options).stdout


def test_the_roll_back_of_the_quickstart_keeps_the_files_of_people(tmp_path: Path) -> None:
    section = QUICKSTART.read_text().split("## 8. Upgrade")[1].split("\n## ")[0]
    lines = [line for line in section.splitlines() if re.search(r"toolgate (backup|restore) ", line)]
    backup, back = (line.replace("runuser -u toolgate -- ", "").replace("/root/", f"{tmp_path}/") for line in lines)

    def shell(line: str) -> None:
        environment = {"PATH": f"{Path(COMMAND).parent}:{os.environ['PATH']}", "HOME": str(tmp_path)}
        environment["TOOLGATE_STATE"] = str(tmp_path / "state")
        subprocess.run(["/bin/sh", "-ec", line], env=environment, check=True, cwd=tmp_path)

    options = ("--sandbox", "none", "--accept-unsandboxed")
    with site(tmp_path, *options, workspace=False) as at, spoken(at, "http") as server:
        server.text("Bash", {"command": "echo precious > thesis.txt"})
        shell(backup)
        server.text("Bash", {"command": "echo newer > notes.txt"})
    shell(back)
    with site(tmp_path, *options, workspace=False) as at, spoken(at, "http") as server:
        assert "precious\nnewer" in server.text("Bash", {"command": "cat thesis.txt notes.txt"})


@pytest.mark.parametrize("again", [False, True], ids=["undo", "again"])
def test_a_restore_that_is_killed_at_any_move_can_be_undone_or_run_again(tmp_path: Path, again: bool) -> None:
    used = state(tmp_path / "one")
    data = backed_up(used)
    write(used, THEIRS)
    before = tree(used)
    moves = 0
    while True:
        child = os.fork()
        if child == 0:
            die_at_move(moves)
            restored(data, used, replace=True)
            os._exit(0)
        killed = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) != 0
        if not killed:
            break
        for words in (("backup", "b"), ("user", "list")):
            done = run(tmp_path, *words, "--state", str(used))
            assert "was interrupted: run that again, with --replace, or run toolgate restore --undo" in done.stderr, (
                done
            )
        if again:
            aside = restored(data, used, replace=True)
            assert aside is not None and tree(aside)["state.db"] == before["state.db"]
            break
        done = run(tmp_path, "restore", "--undo", "--state", str(used))
        assert done.returncode == 0 and "was undone" in done.stdout, done
        assert tree(used) == before
        moves += 5
    assert lock.find_unfinished(used) is None and (again or moves > 10)
    assert not list(used.glob(f"{restore.STAGE}*"))


def die_at_move(number: int) -> None:
    """Have this process end without a word at a rename: the one of that number."""
    rename, done = Path.rename, [0]

    def count(path: Path, to: Path) -> Path:
        done[0] += 1
        if done[0] > number:
            os._exit(9)
        return rename(path, to)

    setattr(Path, "rename", count)  # noqa: B010  # in the child alone

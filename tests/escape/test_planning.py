"""While a plan is active, Bash reads and changes nothing: each way to write is tried at every level."""

import contextlib
import json
import os
import shutil
import signal
import subprocess
import tempfile
import uuid
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.clients.raw_client import eventually
from tests.escape.ground import HOLD, NOBODY, SYSTEM_PYTHON, give_files, run_as
from tests.escape.writes import WRITES, runner
from tests.escape.writes.system import PRIVATE
from tests.escape.writes.write import Write
from tests.folder_contents import find_folders
from tests.server.auth.minted_tokens import Signed, asked, signed_site
from toolgate.server.auth.tokens.access_tokens import OWN_ISSUER
from toolgate.server.base.principals.principal import Principal

PROGRAMS = Path(runner.__file__).parent
LEVELS = {"bwrap": ("bwrap", None), "uid": ("uid", None), "none": ("none", None), "none-user": ("none", NOBODY)}
pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root can be several users")


@contextlib.contextmanager
def folder() -> Iterator[Path]:
    """Yield a folder that every user can enter."""
    with tempfile.TemporaryDirectory(prefix="toolgate-plan-", dir="/tmp") as made:
        Path(made).chmod(0o755)
        yield Path(made)


def prepare_outside(out: Path) -> Path:
    """Make a folder that every user may change."""
    (out / "box").mkdir(parents=True)
    for path in (out, out / "box"):
        path.chmod(0o777)
    for name in ("target", "other"):
        (out / name).write_text(f"{name}\n")
        (out / name).chmod(0o666)
    return out


def prepare(ground: Path, writes: Sequence[Write]) -> None:
    """Put the programs and the scripts there."""
    for name in ("runner.py", "listener.py"):
        shutil.copy(PROGRAMS / name, ground / name)
    scripts = [[each.name, each.script, each.python, each.needs] for each in writes]
    (ground / "scripts.json").write_text(json.dumps(scripts))


def verdicts(output: str) -> dict[str, list[str]]:
    assert "VERDICTS" in output, output
    found: dict[str, list[str]] = json.loads(output.partition("VERDICTS")[2].splitlines()[0])
    return found


def contents(*folders: Path) -> dict[str, Any]:
    return {str(path): runner.describe(path) for top in folders for path in (top, *sorted(top.rglob("*")))}


class Planner:
    """A principal of a server, who plans."""

    def __init__(self, signed: Signed) -> None:
        self.signed = signed
        self._token = signed.token("ada", "one")
        self.root = signed.site.state / "workspaces" / Principal(OWN_ISSUER, "ada", "one").name

    def call(self, tool: str, **arguments: Any) -> tuple[str, bool]:
        """Return the text, and whether it is an error."""
        response, content, said = asked(self.signed, self._token, "tools/call", {"name": tool, "arguments": arguments})
        assert said is not None, (response.status, content[:500])
        result = said["result"]
        return "\n".join(block["text"] for block in result["content"]), result.get("isError", False)

    def bash(self, command: str, **arguments: Any) -> str:
        return self.call("Bash", command=command, **arguments)[0]


@contextlib.contextmanager
def planner(
    made: Path, level: str, user: int | None, command: Sequence[str] = (), limits: Sequence[str] = ()
) -> Iterator[Planner]:
    if user is not None:
        for name in ("state", "home", "work"):
            (made / name).mkdir()
            os.chown(made / name, user, user)
        command = run_as(user, made)
    how = {"command": command} if command else {}
    limits = [*HOLD, "--limit", "calls=0", "--limit", "calls:tools:shell=0", *limits]
    limits += ["--sandbox-paths", str(prepare_outside(made / "out"))] if level == "bwrap" else []
    if level != "bwrap":
        prepare_outside(made / "out")
    with signed_site(made, "--sandbox", level, *limits, workspace=False, **how) as signed:
        mine = Planner(signed)
        if user is not None:
            give_files(signed.site.state, user)
        yield mine


NO_PROCESS = 2**22 - 1  # the largest number, which no process has so soon
QUICK = ("bwrap", "none-user")  # one with read-only mounts, one with Landlock; `make soak` has the others


@pytest.mark.parametrize("name", [pytest.param(one, marks=() if one in QUICK else pytest.mark.soak) for one in LEVELS])
def test_no_way_to_write_comes_off_while_a_plan_is_active(name: str) -> None:
    check_writes(name, [each for each in WRITES if not each.dear])


@pytest.mark.soak
@pytest.mark.parametrize("name", LEVELS)
def test_no_program_writes_while_a_plan_is_active(name: str) -> None:
    check_writes(name, [each for each in WRITES if each.dear])


def check_writes(
    name: str, writes: Sequence[Write], command: Sequence[str] = (), but: frozenset[str] = frozenset()
) -> None:
    """Try all `writes` at a level, with a server that `command` starts; those named in `but` come off."""
    level, user = LEVELS[name]
    with folder() as made, planner(made, level, user, command) as mine:
        out, mark = made / "out", f"toolgate-{uuid.uuid4().hex}"
        owner = mine.bash("id -u; touch first") and (mine.root / "first").stat().st_uid
        prepare(mine.root, writes)
        for path in mine.root.iterdir():
            os.chown(path, owner, owner)
        # a sandbox numbers its own processes: there the listener's number may be that of one of its own
        canary = NO_PROCESS if level == "bwrap" else "$(cat listening)"
        exports = f"export OUT={out} NAME={mark} CANARY={canary} SERVER={mine.signed.site.process.pid}"
        mine.call("BackgroundBash", command=f"{SYSTEM_PYTHON} -I listener.py {mark}")
        assert eventually(lambda: (mine.root / "listening").exists() and (mine.root / "listening").read_text() != "")
        made_up = mine.bash(f"{exports}; {SYSTEM_PYTHON} -I runner.py make scripts.json")
        assert made_up == "(no output)", made_up
        before = contents(mine.root, out)
        assert "Plan mode is on" in mine.call("PlanMode", action="enter", goal="look")[0]

        shown = mine.bash(f"{exports}; {SYSTEM_PYTHON} -I runner.py plan scripts.json", timeout=280_000)

        found = verdicts(shown)
        came_off = {name: what for name, (kind, what) in found.items() if kind == "changed"}
        if level == "bwrap":  # its own /tmp, thrown away with the command
            came_off = {name: what for name, what in came_off.items() if name not in PRIVATE}
            came_off.pop("connects to an abstract socket", None)
        assert {*came_off} == but, came_off
        after = contents(mine.root, out)
        changed = {path for path in before | after if before.get(path) != after.get(path)}
        assert changed == ({str(mine.root / "heard")} if but else set())  # what a process noted that reads a fifo
        assert {*found} == {each.name for each in writes}
        assert mine.signed.site.process.poll() is None


@pytest.mark.brief(*QUICK)
@pytest.mark.parametrize("name", LEVELS)
def test_the_record_of_the_folder_holds_no_more_than_a_path(name: str) -> None:
    level, user = LEVELS[name]
    with folder() as made, planner(made, level, user) as mine:
        mine.call("PlanMode", action="enter", goal="look")
        assert mine.bash("cd /usr/lib; pwd") == "/usr/lib\n"
        record = "$(trap -p EXIT | grep -o '>|[^ ]*' | cut -c3-)"
        shown = mine.bash(f"file={record}; trap - EXIT; head -c 1M /dev/zero >$file; stat -c %s $file; seq 20000")
        assert "\n1048576\n1\n" in shown  # so long that its files are kept
        folders = os.walk(mine.signed.site.state / "spool")  # it passes over a run that is just removed
        sizes = [os.path.getsize(f"{run}/cwd") for run, _, files in folders if "cwd" in files]
        assert sizes and max(sizes) <= 4096
        assert mine.bash("pwd") == "/usr/lib\n"


TEMPORARY = {  # each fails without a folder for temporary files
    "seq 100000 | sort -n -S 100K | tail -1": "100000\n",
    f"cat <<END | wc -c\n{'y' * 100_000}\nEND": "100001\n",
    f"{SYSTEM_PYTHON} -c 'import tempfile as t; print(t.TemporaryFile().write(bytes(1)), bool(t.mkdtemp()))'": (
        "1 True\n"
    ),
    "(cd $(mktemp -d) && mkdir -p a/b && chmod 0 a 2>/dev/null; mkdir -m 0 c; ln -s / d; mkfifo e; echo $?)": "0\n",
}


@pytest.mark.brief(*QUICK)
@pytest.mark.parametrize("name", LEVELS)
def test_temporary_files_are_the_commands_own_and_leave_nothing(name: str) -> None:
    level, user = LEVELS[name]
    with folder() as made, planner(made, level, user) as mine:
        mine.bash("true")
        state, others = mine.signed.site.state, made / "out"
        before = contents(mine.root, others)
        mine.call("PlanMode", action="enter", goal="look")
        for command, text in TEMPORARY.items():
            assert mine.bash(command) == text, command[:80]
        escapes = (
            "(cd ${TMPDIR:-/tmp} && ln -s $HOME out && ! echo x 2>/dev/null >out/new && ! ln $HOME/old old 2>/dev/null"
        )
        (mine.root / "old").write_text("old")
        before = contents(mine.root, others)
        assert mine.bash(f"{escapes} && ! mv $HOME/old . 2>/dev/null; echo $?)") == "0\n"
        assert contents(mine.root, others) == before
        assert not find_folders(state / "spool", "tmp")


@pytest.mark.brief("none-user")
@pytest.mark.parametrize("name", [each for each in LEVELS if each != "bwrap"])
def test_temporary_files_are_bounded(name: str) -> None:
    level, user = LEVELS[name]
    with folder() as made, planner(made, level, user, limits=("--limit", "tmp=4M")) as mine:
        mine.call("PlanMode", action="enter", goal="look")
        one = mine.bash("head -c 5M /dev/zero > $TMPDIR/a; stat -c %s $TMPDIR/a")
        assert "File size limit exceeded" in one and "\n4194304\n" in one, one
        text, is_error = mine.call(
            "Bash", command="for i in 1 2 3; do head -c 3M /dev/zero > $TMPDIR/$i; done; sleep 600"
        )
        assert is_error and "its temporary files were over 4,194,304 bytes" in text, text
        assert not find_folders(mine.signed.site.state / "spool", "tmp")


def test_there_are_enough_ways_and_each_has_a_name_of_its_own() -> None:
    assert len({each.name for each in WRITES}) == len(WRITES) >= 200


@pytest.mark.soak
def test_each_way_to_write_comes_off_without_a_plan() -> None:
    """So none of them fails for another reason than the plan."""
    with folder() as made:
        ground, mark = made / "ground", f"toolgate-{uuid.uuid4().hex}"
        ground.mkdir()
        prepare(ground, [each for each in WRITES if each.free])
        prepare_outside(made / "out")
        (ground / "tree").mkdir()
        listener = subprocess.Popen([SYSTEM_PYTHON, "-I", "listener.py", mark], cwd=ground)
        try:
            assert eventually((ground / "listening").exists)
            environment = {**os.environ, "OUT": str(made / "out"), "NAME": mark, "CANARY": str(listener.pid)}
            ran = subprocess.run(
                [SYSTEM_PYTHON, "-I", "runner.py", "free", "scripts.json"],
                cwd=ground, capture_output=True, text=True, timeout=280, check=False,
                env={**environment, "SERVER": str(listener.pid)},
            )  # fmt: skip
        finally:
            listener.send_signal(signal.SIGKILL)
            listener.wait()
        found = verdicts(ran.stdout + ran.stderr)
        assert {name: what for name, (kind, what) in found.items() if kind == ""} == {}

"""The lines of docs/state.md, run as a reader would."""

import re
import shlex
from pathlib import Path

from tests.clients.raw_client import ROOT
from tests.server.cli.test_cli import run

TEXT = (ROOT / "docs" / "state.md").read_text()


def test_every_line_of_the_page_about_the_state_works_in_turn(tmp_path: Path) -> None:
    lines = "".join(re.findall(r"```sh\n(.*?)```", TEXT, re.S)).replace("/var/lib", str(tmp_path)).splitlines()
    exported = dict(line.removeprefix("export ").split("=", 1) for line in lines if line.startswith("export "))
    state = Path(exported["TOOLGATE_STATE"])
    assert run(tmp_path, "user", "add", "ada", stdin="correct horse", **exported).returncode == 0
    assert run(tmp_path, "call", "Bash", "command=true", "--audit", "on", **exported).returncode == 0
    told = ""
    for line in lines:
        name, *words = shlex.split(line)
        assert name in ("export", "toolgate"), line
        if name == "toolgate":
            done = run(tmp_path, *words, **exported)
            assert done.returncode == 0, (line, done.stderr)
            told += done.stdout
    for said in (
        "without workspaces",
        "restored to",
        "ada  ",
        "everybody is signed out",
        "signs from now on",
        "intact: lines 1 to",
    ):
        assert said in told, (said, told)
    assert {path.name for path in tmp_path.glob("*.gz")} == {"monday.tar.gz", "monday-all.tar.gz", "moving.tar.gz"}
    assert len(list(state.glob("replaced-*/state.db"))) == 1

"""The escapes, tried from inside a hostile mounted server: its sandbox holds as that of a person's commands."""

import os
import shutil
import tempfile
from pathlib import Path

import pytest

from tests.clients.raw_client import eventually
from tests.escape.attempts import ATTEMPTS
from tests.escape.ground import NOBODY, ground

PROGRAM = Path(__file__).with_name("mounted_shell.py")
OPEN = 'network = ["*"]\nfiles = ["{}/drop:rw"]'


@pytest.mark.soak  # all scripts five times: a minute of processor time
@pytest.mark.skipif(os.geteuid() != 0, reason="only root has all levels")
@pytest.mark.programs("bwrap")
@pytest.mark.parametrize(
    ("level", "user", "places"),
    [
        ("bwrap", None, ""),
        ("uid", None, ""),
        ("bwrap", None, OPEN),
        ("bwrap", NOBODY, OPEN),
        ("uid", None, "network = []"),
    ],
    ids=["bwrap", "uid", "bwrap-open", "bwrap-open-user", "uid-network"],  # the user differs in each worker
)
def test_no_attempt_comes_off_from_inside_a_mounted_server(level: str, user: int | None, places: str) -> None:
    folder = Path(tempfile.mkdtemp(prefix="toolgate-mount-", dir="/tmp"))
    try:
        folder.chmod(0o755)
        shutil.copy(PROGRAM, folder)
        (folder / "drop").mkdir()
        (folder / "drop").chmod(0o777)
        file = folder / "mounts.toml"
        file.write_text(
            f'[mounts.hostile]\ncommand = "python3"\nargs = ["{PROGRAM.name}"]\ncwd = "{folder}"\ntimeout = "5m"\n'
            + places.format(folder)
        )
        with ground(level, user=user, options=("--config", str(file))) as made:
            assert eventually(lambda: "hostile__run" in made.list_tools()), made.signed.site.log()
            scripts = [each for each in ATTEMPTS if each.script and not each.alone and level not in each.untried]
            if user is not None:
                scripts = [each for each in scripts if not each.rooted and not each.grouped]
            got = made.run_scripts([(each.name, each.script, each.bash) for each in scripts], "mallory", "hostile__run")
            stopped = [each.name for each in scripts if level in each.stopped]
            came_off = {name: got[name] for name in stopped if made.token in got[name]}
            if level == "uid":  # CAP_SETPCAP in a user namespace of its own: what the person's commands lack
                assert came_off.pop("has a capability").split() == [made.token, "0000000000000100"]
            assert came_off == {}
            untold = [name for name, said in got.items() if "BROKEN" in said or "(no verdict)" in said]
            assert untold == [], got[untold[0]]
    finally:
        shutil.rmtree(folder)

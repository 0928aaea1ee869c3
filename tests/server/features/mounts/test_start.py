"""A server without mounts starts as if there were no such feature."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.clients.raw_client import PATIENCE
from tests.server.cli.test_cli import run

LOAD = """
import json, sys
from toolgate.server.app.features import check_options
from toolgate.server.config.load import load
check_options(load({}, {"HOME": sys.argv[1]}))
own = ("tomllib", "toolgate.server.features.mounts")
print(json.dumps([name for name in sys.modules if name.startswith(own)]))
"""


ROOM = "toolgate.server.features.mounts"
LIGHT = {ROOM, f"{ROOM}.config", f"{ROOM}.config.options"}  # options are declared at each start


@pytest.mark.parametrize("has_mounts", [False, True])
def test_a_start_imports_the_feature_only_for_mounts(tmp_path: Path, has_mounts: bool) -> None:
    if has_mounts:
        (tmp_path / ".config/toolgate").mkdir(parents=True)
        (tmp_path / ".config/toolgate/config.toml").write_text("[mounts.a]\ncommand = 'x'\n")
    words = (sys.executable, "-c", LOAD, str(tmp_path))
    loaded = json.loads(subprocess.check_output(words, timeout=PATIENCE))
    assert bool({*loaded} - LIGHT) is has_mounts, loaded


def test_the_server_of_a_command_reads_the_mounts_of_the_config_file(tmp_path: Path) -> None:
    file = tmp_path / "named.toml"
    words = ("tools", "--config", str(file), "--state", str(tmp_path / "state"))
    options = 'http = true\npublic_url = "https://tools.example.com"\ntools = ["Bash"]\n'
    for table, code, shown in (
        ("", 0, "Bash(command*"),
        ("[mounts.a]\ncomand = 'x'\n", 0, "Bash(command*"),
        ("[mounts]\ncommand = 'x'\n", 2, "write [mounts.NAME] above its lines"),
    ):
        file.write_text(options + table)
        ran = run(tmp_path, *words)
        assert ran.returncode == code and shown in ran.stdout + ran.stderr, ran
        assert "WebSearch(" not in ran.stdout

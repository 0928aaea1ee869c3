"""`make` on a machine that has only Python, for root and for a user without rights."""

import os
import subprocess

import pytest

from tests.clients.raw_client import ROOT
from tests.servers.reserved_port import kept_port

RECIPE = {"MAKELEVEL": "1", "MAKEFLAGS": "w", "MFLAGS": "-w"}  # as if a make ran the tests
WITHIN = 400  # seconds: some sixty packages may have to be downloaded
UNCOMPILED = """\
from importlib.util import cache_from_source
from pathlib import Path
sources = [path for folder in (".venv/lib", "server", "tools", "transports") for path in Path(folder).rglob("*.py")]
print(len(sources) > 1000, [path for path in sources if not Path(cache_from_source(path)).exists()])
"""


def bare(*words: str) -> subprocess.CompletedProcess[str]:
    command = [str(ROOT / ".ci" / "bare"), *words]
    environment = {**os.environ, **RECIPE}
    told = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=WITHIN, env=environment)
    if told.stderr.startswith("bare: "):
        pytest.fail(told.stderr.splitlines()[0], pytrace=False)
    return told


@pytest.mark.soak  # 27 s of processor time; .ci/run has it
def test_root_needs_python_and_nothing_else() -> None:
    port = kept_port()  # the network there is this machine's
    serve = f".venv/bin/toolgate -t --auth none --port {port} & server=$!; .venv/bin/toolgate call Bash command=pwd"
    ready = f"until .venv/bin/toolgate health --port {port}; do kill -0 $server || exit; done"
    call = f".venv/bin/toolgate call Bash command=pwd --url http://127.0.0.1:{port}/mcp"
    told = bare(f"make demo && .venv/bin/toolgate doctor -t && {{ {serve}; {ready}; {call}; kill $server; }}")
    assert told.returncode == 0, told.stdout + told.stderr
    assert "All of it worked" in told.stdout and "(sandbox: uid)" in told.stdout
    assert "/var/lib/toolgate/workspaces/local" in told.stdout.splitlines(), "served, with stdio beside it"


@pytest.mark.soak  # 20 s
def test_a_user_without_rights_needs_python_and_gets_all_of_it_compiled() -> None:
    told = bare("--user", f"make setup && .venv/bin/python -c '{UNCOMPILED}' && make demo")
    assert told.returncode == 0, told.stdout + told.stderr
    assert "True []" in told.stdout.splitlines(), "what is imported, before the first run"
    assert "All of it worked" in told.stdout and "(sandbox: none)" in told.stdout


def test_a_user_without_rights_is_told_in_one_line_what_the_tests_need() -> None:
    told = bare("--user", "make test")
    asked = [line for line in told.stderr.splitlines() if not line.startswith("make")]
    assert told.returncode == 2 and told.stdout == ""
    assert len(asked) == 1 and asked[0].startswith("Ask an administrator to run: apt-get install"), told.stderr
    assert {"bubblewrap", "chromium", "caddy"} <= set(asked[0].split())

"""Without a feature's folder and its row, the program works and does not mention the feature.

`test_core_suite.py` runs the core's suite so; `tests/needed_features.py` leaves out the modules of tests that need it.
"""

import json
import os
import re
import subprocess
import sys
from collections.abc import Collection, Iterator
from pathlib import Path

import msgspec
import pytest

from tests.clients.raw_client import PATIENCE, ROOT
from tests.clients.raw_http_client import Site
from tests.needed_features import FEATURES, list_deleted, needs_deleted
from tests.server.features.reduced_copy import copy_without

WORDS = {  # by folder: what shows the feature
    "clients": ("toolgate install", "toolgate config", "cursor"),
    "events": ("webhook",),
    "mounts": ("toolgate mount",),
    "nodes": ("node",),
    "postgres": ("postgres", "--database"),
    "remote_checks": ("server at --url", "doctor --url"),
    "replicas": ("redis",),
    "telemetry": ("audit", "metrics", "toolgate_calls"),
}
SHOW = """import sys
from toolgate.server.cli import main
for place, words in enumerate(sys.argv[1:]):
    print("\\0" * bool(place), end="", flush=True)
    assert main.run((*words.split(), "--help")) == 0
"""  # the helps of several commands
PROGRAM = (sys.executable, "-m", "toolgate.server")
pytestmark = pytest.mark.skipif(bool(list_deleted()), reason="it deletes them itself")
LARGEST = ("events", "nodes", "postgres", "replicas", "mounts", "all")  # the soak tries the small ones, too


class Cut(msgspec.Struct, frozen=True):
    """The folders of features that a copy of the program lacks."""

    folders: Collection[str]

    def find_mentions(self, text: str) -> list[str]:
        return [word for folder in self.folders for word in WORDS[folder] if word in text.lower()]


@pytest.fixture(params=[*FEATURES, "all"], scope="module")
def cut(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cut]:
    """Make a copy of the program without a feature or without all, and have Python find it first."""
    folders = [*FEATURES] if request.param == "all" else [request.param]
    package = tmp_path_factory.mktemp("program") / "toolgate"
    copy_without(folders, package)
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("PYTHONPATH", str(package.parent))
        import_it = "import toolgate.server; print(toolgate.server.__file__)"
        assert subprocess.check_output((sys.executable, "-c", import_it), text=True).startswith(str(package))
        yield Cut(folders)


def test_every_feature_is_tried() -> None:
    folders = [path.parent.name for path in (ROOT / "server/features").glob("*/__init__.py")]
    assert sorted(folders) == sorted(FEATURES) == sorted(WORDS)


def test_modules_that_need_a_deleted_feature_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    folder = ROOT / "tests/server"
    modules = [folder / "features/nodes/test_moves.py", folder / "features/replicas/test_replicas.py"]
    modules += [folder / "cli/test_cli.py", folder / "features/test_without.py"]
    assert not any(needs_deleted(module) for module in modules)
    monkeypatch.setattr("tests.needed_features.list_deleted", lambda: frozenset(("nodes",)))
    assert [needs_deleted(module) for module in modules] == [True, True, False, False], "replicas have nodes"


def run(folder: Path, *words: str) -> str:
    """Return what a command prints."""
    done = subprocess.run([*PROGRAM, *words], cwd=folder, capture_output=True, text=True, timeout=PATIENCE)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.brief(*LARGEST)
def test_help_and_doctor_do_not_mention_it(cut: Cut, tmp_path: Path) -> None:
    commands = {"serve": "--port", "": "--port", "backup": "--with-workspaces", "health": "--url"}
    helps = subprocess.check_output((sys.executable, "-c", SHOW, *commands), cwd=tmp_path, text=True, timeout=PATIENCE)
    for shown, there in zip(helps.split("\0"), commands.values(), strict=True):
        assert cut.find_mentions(shown) == [] and there in shown
        assert [folder for folder in cut.folders if re.search(rf"^  {folder}", shown, re.M)] == [], "a command"
    options = ("-t", "--auth", "none", "--browser", "none", "--state", "state")  # a start of Chromium takes two seconds
    checks = json.loads(run(tmp_path, "doctor", "--json", *options))["checks"]
    assert cut.find_mentions(json.dumps(checks)) == [] and len(checks) > 20


@pytest.mark.brief(*LARGEST, "telemetry")
def test_a_server_answers_calls_and_says_nothing_of_it(cut: Cut, tmp_path: Path) -> None:
    site = Site(tmp_path, env={"PYTHONPATH": os.environ["PYTHONPATH"]}, command=PROGRAM)
    try:
        asked = {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": {"protocolVersion": "2025-06-18"}}
        asked["params"] |= {"capabilities": {}, "clientInfo": {"name": "a", "version": "1"}}  # type: ignore[operator]  # a dict
        response, _, answer = site.ask("POST", "/mcp", asked)
        assert response.status == 200 and answer["result"]["serverInfo"]["name"] == "toolgate"
        assert answer["result"]["capabilities"].keys() & cut.folders == set()
        assert cut.find_mentions(site.ask("GET", "/", accept="text/html")[1].decode()) == []
        response, metrics, _ = site.ask("GET", "/metrics")
        if "telemetry" in cut.folders:
            assert response.status == 404
        else:
            assert "toolgate_calls" in metrics.decode() and cut.find_mentions(metrics.decode()) == []
        assert site.ask("GET", "/ready")[0].status == 200
    finally:
        assert site.stop() == 0
    assert "Traceback" not in site.log() and (site.state / "audit").exists() == ("telemetry" not in cut.folders)


@pytest.mark.parametrize("cut", ["mounts", "all"], indirect=True)
def test_a_plugin_that_needs_a_process_of_its_own_is_left_out(cut: Cut, tmp_path: Path) -> None:
    tool = 'from toolgate.tools import tool\n@tool\ndef {0}() -> str:\n    "Return nothing."\n    return ""\n'
    (tmp_path / "plugins").mkdir()
    (tmp_path / "plugins" / "apart.py").write_text("__isolate__ = True\n" + tool.format("apart"))
    (tmp_path / "plugins" / "inside.py").write_text(tool.format("inside"))
    words = (*PROGRAM, "tools", "-p", str(tmp_path / "plugins"), "--state", str(tmp_path / "state"))
    done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, timeout=PATIENCE)
    assert "inside()" in done.stdout and "apart()" not in done.stdout
    assert "it wants to be isolated, which is not available in this version" in done.stderr

"""Without a feature's folder and its row, the program works and does not mention the feature."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.clients.raw_client import PATIENCE, ROOT
from tests.clients.raw_http_client import Site

PLUGGED = {  # the features of which all is in their folder, and what shows them
    "replicas": ("redis",),
    "postgres": ("postgres", "--database"),
    "nodes": ("node",),
}
PROGRAM = (sys.executable, "-m", "toolgate.server")


@pytest.fixture(params=PLUGGED)
def cut(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[str, ...]:
    """Make a copy of the program without a feature, and have Python find it first. Return words of the feature."""
    package = tmp_path / "program/toolgate"
    for top in ("server", "tools", "transports", "plugins"):
        shutil.copytree(ROOT / top, package / top, ignore=shutil.ignore_patterns("__pycache__", request.param))
    rows = package / "server/config/feature_rows.py"
    text, count = re.subn(
        rf'    FeatureRow\(\n(?:        .*\n)*?        feature="{request.param}\..*\n(?:        .*\n)*    \),\n',
        "",
        rows.read_text(),
    )
    assert count == 1 and request.param not in text
    rows.write_text(text)
    monkeypatch.setenv("PYTHONPATH", str(package.parent))
    import_it = "import toolgate.server; print(toolgate.server.__file__)"
    assert subprocess.check_output((sys.executable, "-c", import_it), text=True).startswith(str(package))
    return PLUGGED[request.param]


def run(folder: Path, *words: str) -> str:
    """Return what a command prints."""
    done = subprocess.run([*PROGRAM, *words], cwd=folder, capture_output=True, text=True, timeout=PATIENCE)
    assert done.returncode == 0, done.stderr
    return done.stdout


def mentions(text: str, cut: tuple[str, ...]) -> list[str]:
    return [word for word in cut if word in text.lower()]


def test_help_and_doctor_do_not_mention_it(cut: tuple[str, ...], tmp_path: Path) -> None:
    where = run(tmp_path, "serve", "--help")
    assert mentions(where, cut) == [] and "--port" in where
    where = run(tmp_path, "backup", "--help")
    assert mentions(where, cut) == [] and "--with-workspaces" in where
    checks = json.loads(run(tmp_path, "doctor", "--json", "-t", "--auth", "none", "--state", "state"))["checks"]
    assert mentions(json.dumps(checks), cut) == [] and len(checks) > 20


def test_a_server_answers_calls_and_says_nothing_of_it(cut: tuple[str, ...], tmp_path: Path) -> None:
    site = Site(tmp_path, env={"PYTHONPATH": os.environ["PYTHONPATH"]}, command=PROGRAM)
    try:
        asked = {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": {"protocolVersion": "2025-06-18"}}
        asked["params"] |= {"capabilities": {}, "clientInfo": {"name": "a", "version": "1"}}  # type: ignore[operator]  # a dict
        response, _, answer = site.ask("POST", "/mcp", asked)
        assert response.status == 200 and answer["result"]["serverInfo"]["name"] == "toolgate"
        metrics = site.ask("GET", "/metrics")[1].decode()
        assert "toolgate_calls" in metrics and mentions(metrics, cut) == []
        assert site.ask("GET", "/ready")[0].status == 200
    finally:
        assert site.stop() == 0
    assert "Traceback" not in site.log()
    assert "database version" in run(tmp_path, "backup", "copy.tar.gz", "--state", str(site.state))

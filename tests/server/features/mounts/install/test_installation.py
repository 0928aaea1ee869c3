"""Packages of npm and PyPI that are installed for a mount, by the real programs, from files: no registry is asked."""

import base64
import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.clients.raw_client import ROOT
from tests.clients.raw_http_client import site, spoken
from tests.server.features.mounts.mounted import PROGRAM, wait_listed
from toolgate.server.cli import main
from toolgate.server.config.files.config_file import ConfigFileError
from toolgate.server.features.mounts.config.editing import MountsFile

START = """#!/usr/bin/env node
const far = require('child_process').spawn('python3', [__dirname + '/far_server.py', 'legacy'], {stdio: 'inherit'});
far.on('exit', code => process.exit(code));
"""
WHEEL = "Wheel-Version: 1.0\nGenerator: tests\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
Add = Callable[..., int]


@pytest.fixture
def add(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Add:
    """Run `toolgate mount ACTION …`; uv is that of the tests."""
    monkeypatch.setenv("PATH", f"{os.environ['PATH']}:{ROOT / '.venv' / 'bin'}")
    monkeypatch.setenv("npm_config_offline", "true")
    monkeypatch.setenv("UV_OFFLINE", "1")
    monkeypatch.setenv("UV_PYTHON", sys.executable)
    (tmp_path / "c.toml").touch()

    def run(action: str, name: str, *words: str) -> int:
        state = () if "--state" in words else ("--state", str(tmp_path / "state"))
        return main.run(("mount", action, name, "--config", str(tmp_path / "c.toml"), *state, *words))

    return run


def npm_package(folder: Path, version: str = "1.0.0", **fields: object) -> Path:
    """Return the file of a package whose program is the far server."""
    place = folder / f"npm-{version}" / "package"
    place.mkdir(parents=True)
    (place / "package.json").write_text(
        json.dumps({"name": "@far/away", "version": version, "bin": "run.js", **fields})
    )
    (place / "run.js").write_text(START)
    shutil.copy(PROGRAM, place)
    file = folder / f"away-{version}.tgz"
    subprocess.run(["tar", "-C", place.parent, "-czf", file, "package"], check=True)
    return file


def wheel(folder: Path) -> Path:
    """Return a wheel whose program `away` is the far server."""
    words = [sys.executable, str(PROGRAM), "legacy"]
    run = f"import os\ndef main():\n    os.execv({sys.executable!r}, {words!r})\n"
    files = {
        "away.py": run,
        "away-1.0.dist-info/METADATA": "Metadata-Version: 2.1\nName: away\nVersion: 1.0\n",
        "away-1.0.dist-info/WHEEL": WHEEL,
        "away-1.0.dist-info/entry_points.txt": "[console_scripts]\naway = away:main\n",
    }
    rows = []
    for name, text in files.items():
        digest = base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest()).rstrip(b"=").decode()
        rows.append(f"{name},sha256={digest},{len(text.encode())}")
    files["away-1.0.dist-info/RECORD"] = "\n".join([*rows, "away-1.0.dist-info/RECORD,,", ""])
    file = folder / "away-1.0-py3-none-any.whl"
    with zipfile.ZipFile(file, "w") as opened:
        for name, text in files.items():
            opened.writestr(name, text)
    return file


@pytest.mark.parametrize("tool", ["npx", "uvx"])
def test_an_installed_package_is_what_runs(
    add: Add, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tool: str
) -> None:
    words = ("-y", str(npm_package(tmp_path))) if tool == "npx" else ("--from", str(wheel(tmp_path)), "away")
    assert add("add", "far", "--", tool, *words) == 0, capsys.readouterr().err
    assert "Installing" in capsys.readouterr().err
    assert f'command = "{tool}"' in (tmp_path / "c.toml").read_text()  # as it was written
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    monkeypatch.setattr(shutil, "which", lambda *_words, **_more: None)
    assert add("test", "far") == 0, capsys.readouterr().out
    assert "  echo  The tool echo" in capsys.readouterr().out
    assert add("remove", "far") == 0
    assert not (tmp_path / "state/mounts/far").exists()


def test_another_version_takes_the_place_of_the_first(add: Add, tmp_path: Path) -> None:
    place = tmp_path / "state/mounts/far"
    assert add("add", "far", "--", "npx", "-y", str(npm_package(tmp_path))) == 0
    (first,) = (each.name for each in place.iterdir() if each.is_dir())
    other = str(npm_package(tmp_path, "2.0.0"))
    assert add("add", "far", "--", "npx", "-y", other) == 2, "it has this name already"
    assert (place / first).is_dir()
    assert add("add", "far", "--replace", "--", "npx", "-y", other) == 0
    (second,) = (each.name for each in place.iterdir() if each.is_dir())
    assert second != first
    assert (
        json.loads((place / second / "package-lock.json").read_text())["packages"]["node_modules/@far/away"]["version"]
        == "2.0.0"
    )


def test_a_file_that_can_not_be_written_leaves_what_was_installed(
    add: Add, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(_file: MountsFile) -> None:
        raise ConfigFileError("the disk is full")

    place = tmp_path / "state/mounts/far"
    assert add("add", "far", "--", "npx", "-y", str(npm_package(tmp_path))) == 0
    before = sorted(each.name for each in place.iterdir())
    monkeypatch.setattr(MountsFile, "save", fail)
    assert add("add", "far", "--replace", "--", "npx", "-y", str(npm_package(tmp_path, "2.0.0"))) == 1
    assert add("remove", "far") == 1
    assert sorted(each.name for each in place.iterdir()) == before


def test_what_can_not_be_installed_is_not_added_and_leaves_nothing(
    add: Add, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    silent = str(npm_package(tmp_path, bin={"one": "run.js", "two": "package.json"}))
    for package, why in ((silent, "does not say which program"), ("no-such-package-here", "npm can't install it")):
        assert add("add", "far", "--", "npx", "-y", package) == 1
        assert why in capsys.readouterr().err
    assert (tmp_path / "c.toml").read_text() == ""
    assert not [each for each in (tmp_path / "state/mounts/far").glob("*") if each.is_dir()]
    assert add("add", "far", "--no-install", "--", "npx", "-y", silent) == 0
    assert add("test", "far") == 1
    assert "NOT_STARTED: " in capsys.readouterr().out
    assert add("add", "far", "--replace", "--", "npx", "-y", "-p", silent, "one") == 0


@pytest.mark.skipif(os.geteuid() != 0, reason="only root has all levels")
@pytest.mark.programs("bwrap")
@pytest.mark.brief("bwrap")  # test_places.py has both levels
@pytest.mark.parametrize("level", ["bwrap", "uid"])
def test_a_sandbox_sees_what_is_installed_and_can_not_change_it(add: Add, tmp_path: Path, level: str) -> None:
    folder = Path(tempfile.mkdtemp(prefix="toolgate-mount-"))
    try:
        folder.chmod(0o755)
        own = ("--state", str(folder / "state"))
        assert add("add", "far", *own, "--", "npx", "-y", str(npm_package(tmp_path))) == 0
        options = ("--auth", "none", "--sandbox", level, "--config", str(tmp_path / "c.toml"))
        with site(folder, *options, workspace=False) as listening, spoken(listening, "http") as client:
            wait_listed(client)
            assert client.text("far__count") == "1"
            (script,) = (folder / "state/mounts/far").glob("*/node_modules/@far/away/run.js")
            assert "refused" in client.text("Bash", {"command": f"echo x >> {script} || echo refused"})
            assert script.read_text() == START
    finally:
        shutil.rmtree(folder)

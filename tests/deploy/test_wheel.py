"""The wheel in an empty environment, installed by Debian 12's pip: everything in the clone works there too."""

import http.server
import os
import re
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.clients.raw_client import ROOT
from tests.clients.raw_http_client import site
from tests.servers.faulty_proxy import listening

OLD_PIP = "23.0"  # does not normalise extras: lxml[html_clean] comes without lxml-html-clean
PACKAGES = ("server", "tools", "transports")
SOURCES = (*PACKAGES, "pyproject.toml", "README.md", "LICENSE")
WITHIN = 400  # seconds: some sixty packages may have to be downloaded
PAGE = b"<!doctype html><title>Lamps</title><main><h1>Lamps</h1><p>A lamp that turns is seen from far away.</p></main>"


class Lighthouse(http.server.BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "text/html")
        self.send_header("Content-Length", str(len(PAGE)))
        self.end_headers()
        self.wfile.write(PAGE)

    def log_message(self, *_: object) -> None: ...


def done(command: Sequence[str | Path], cwd: Path, environment: dict[str, str]) -> str:
    """Return the output of a command that succeeds."""
    told = subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True, timeout=WITHIN)
    assert told.returncode == 0, told.stdout + told.stderr
    return told.stdout


def built(folder: Path, environment: dict[str, str]) -> Path:
    """Return the wheel, built from a copy of the sources, as building leaves files there."""
    for name in SOURCES:
        source = ROOT / name
        if source.is_dir():
            shutil.copytree(source, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(source, folder / name)
    options = ("--no-deps", "--no-build-isolation", "--no-index", "-q", "-w", "wheel", ".")
    done([sys.executable, "-m", "pip", "wheel", *options], folder, environment)
    (wheel,) = (folder / "wheel").glob("toolgate-*.whl")
    return wheel


def constraints(folder: Path) -> Path:
    """Return the versions of the lock, without the hashes."""
    pinned = re.findall(r"^([\w.-]+==[^ \\\n]+(?: ; [^\\\n]+)?)", (ROOT / "requirements.lock").read_text(), re.M)
    file = folder / "constraints.txt"
    file.write_text("\n".join(each.strip() for each in pinned))
    return file


@pytest.mark.skipif(sys.version_info >= (3, 12), reason="pip 23.0 is older than Python 3.12")
def test_the_wheel_by_an_old_pip_has_all_that_the_clone_has(tmp_path: Path) -> None:
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("TOOLGATE_", "PYTHON"))}
    (tmp_path / "sources").mkdir()
    wheel = built(tmp_path / "sources", environment)
    with zipfile.ZipFile(wheel) as archive:
        packed = {name.removeprefix("toolgate/") for name in archive.namelist() if name.startswith("toolgate/")}
    cloned = {str(path.relative_to(ROOT)) for name in PACKAGES for path in (ROOT / name).rglob("*") if path.is_file()}
    assert packed == {path for path in cloned if "__pycache__" not in path}

    bin = tmp_path / "venv" / "bin"
    done([sys.executable, "-m", "venv", tmp_path / "venv"], tmp_path, environment)
    install = [bin / "python", "-m", "pip", "install", "-q"]
    done([*install, f"pip=={OLD_PIP}"], tmp_path, environment)
    done([*install, "-c", constraints(tmp_path), wheel], tmp_path, environment)

    own = {"PATH": "/usr/bin:/bin", "HOME": str(tmp_path / "home"), "TOOLGATE_BROWSER": "none"}
    (tmp_path / "home").mkdir()
    with listening(Lighthouse) as url:
        read = [bin / "toolgate", "call", "ReadDocs", f"url={url}/", "--allow-private", "127.0.0.1"]
        assert "A lamp that turns" in done(read, tmp_path, own)
    toured = done([bin / "toolgate", "demo"], tmp_path, own)
    assert "All of it worked" in toured and "playwright" not in toured
    assert "toolgate-tools" in done([bin / "toolgate", "tools"], tmp_path, own)
    command = (str(bin / "toolgate"),)
    with site(tmp_path / "served", "--auth", "oauth", command=command, env={"TOOLGATE_BROWSER": "none"}) as place:
        assert place.ask("GET", "/ready")[2]["status"] == "ready", "the database was made, by its migrations"
        page = place.ask("GET", "/login")[1].decode()
        for asset in re.findall(r'(?:href|src)="([^"]+\.(?:css|js))"', page):
            assert place.ask("GET", asset)[0].status == 200, asset
        assert "<form" in page

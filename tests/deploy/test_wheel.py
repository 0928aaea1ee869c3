"""The built wheel and sdist, away from the clone: everything in the clone works there too.

The wheel is installed by the ways that the README names: uv, uvx, pipx, and pip, also Debian 12's.
"""

import http.server
import io
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass
from email import message_from_string
from pathlib import Path

import pytest

from tests.clients.raw_client import ROOT, STATELESS
from tests.clients.raw_http_client import site
from tests.docs.pages import page
from tests.servers.faulty_proxy import listening

OLD_PIP = "23.0"  # does not normalise extras: lxml[html_clean] comes without lxml-html-clean
PACKAGES = ("server", "tools", "transports", "plugins")
PAGES = ("CHANGELOG.md", "CONTRIBUTING.md", "README.md", "SECURITY.md", "deploy", "docs")
SOURCES = (*PACKAGES, *PAGES, "pyproject.toml", "setup.py", "MANIFEST.in", "LICENSE")
ADDRESS = "https://git.example/ada/toolgate"
UV = ROOT / ".venv" / "bin" / "uv"
WITHIN = 400  # seconds: some sixty packages may have to be downloaded
PAGE = b"<!doctype html><title>Lamps</title><main><h1>Lamps</h1><p>A lamp that turns is seen from far away.</p></main>"
ENVELOPE = {  # of a request without a session
    "io.modelcontextprotocol/protocolVersion": STATELESS,
    "io.modelcontextprotocol/clientInfo": {"name": "cursor", "version": "1"},
    "io.modelcontextprotocol/clientCapabilities": {},
}


class Lighthouse(http.server.BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "text/html")
        self.send_header("Content-Length", str(len(PAGE)))
        self.end_headers()
        self.wfile.write(PAGE)

    def log_message(self, *_: object) -> None: ...


def done(command: Sequence[str | Path], cwd: Path, environment: dict[str, str], input: str | None = None) -> str:
    """Return the output of a command that succeeds."""
    told = subprocess.run(
        command, cwd=cwd, env=environment, capture_output=True, text=True, timeout=WITHIN, input=input
    )
    assert told.returncode == 0, told.stdout + told.stderr
    return told.stdout


def clean_environment() -> dict[str, str]:
    """Return the environment of the installers: the machine's own, for which index and proxy it has."""
    return {name: value for name, value in os.environ.items() if not name.startswith(("TOOLGATE_", "PYTHON"))}


def build(hook: str, folder: Path) -> Path:
    """Return what a hook of the build back end makes of a folder of sources, as pip and uv call it (PEP 517)."""
    program = f"import setuptools.build_meta as back_end; back_end.{hook}('dist')"
    done([sys.executable, "-W", "ignore", "-c", program], folder, clean_environment())
    (made,) = (folder / "dist").iterdir()
    return made


@dataclass
class Built:
    """An index has both; `wheel` is made from the sdist, so that each holds all that it needs."""

    sdist: Path
    wheel: Path


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Built:
    folder = tmp_path_factory.mktemp("built")
    (folder / "sources").mkdir()
    for name in SOURCES:
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, folder / "sources" / name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(ROOT / name, folder / "sources" / name)
    sdist = build("build_sdist", folder / "sources")
    with tarfile.open(sdist) as archive:
        archive.extractall(folder / "unpacked", filter="data")
    (unpacked,) = (folder / "unpacked").iterdir()
    return Built(sdist, build("build_wheel", unpacked))


def contents(wheel: Path) -> dict[str, bytes]:
    """Return the files of a wheel, without the list of their digests."""
    with zipfile.ZipFile(wheel) as archive:
        return {name: archive.read(name) for name in archive.namelist() if not name.endswith("/RECORD")}


def constraints(folder: Path) -> Path:
    """Return the versions of the lock, without the hashes."""
    pinned = re.findall(r"^([\w.-]+==[^ \\\n]+(?: ; [^\\\n]+)?)", (ROOT / "requirements.lock").read_text(), re.M)
    file = folder / "constraints.txt"
    file.write_text("\n".join(each.strip() for each in pinned))
    return file


def own_environment(folder: Path) -> dict[str, str]:
    """Return the environment of a person with an empty home."""
    (folder / "home").mkdir(exist_ok=True)
    return {"PATH": "/usr/bin:/bin", "HOME": str(folder / "home"), "TOOLGATE_BROWSER": "none"}


def first_call(toolgate: Sequence[str | Path], folder: Path, environment: dict[str, str]) -> list[str]:
    """Have the program add itself to a client, call a tool as the client would, and return the client's command."""
    told = done([*toolgate, "install", "cursor", "--name", "mine"], folder, environment)
    file = folder / "home" / ".cursor" / "mcp.json"
    assert str(file) in told
    entry = json.loads(file.read_text())["mcpServers"]["toolgate"]
    words = [entry["command"], *entry["args"]]
    call = {"name": "Bash", "arguments": {"command": "echo hello"}, "_meta": ENVELOPE}
    request = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": call}
    answers = done(words, folder, environment, json.dumps(request) + "\n")
    (answer,) = (each for each in map(json.loads, answers.splitlines()) if each.get("id") == 1)
    assert "hello" in answer["result"]["content"][0]["text"], answer
    done([*toolgate, "uninstall", "cursor"], folder, environment)
    assert not file.exists()
    return words


def uv_environment(folder: Path) -> dict[str, str]:
    """Return the environment of uv for that person, with this machine's cache."""
    cache = done([UV, "cache", "dir"], folder, clean_environment()).strip()
    (folder / "home").mkdir(exist_ok=True)
    return {**clean_environment(), "HOME": str(folder / "home"), "UV_CACHE_DIR": cache}


def test_the_wheel_of_the_sdist_has_all_that_the_clone_has(built: Built) -> None:
    files = contents(built.wheel)
    packed = {name.removeprefix("toolgate/"): data for name, data in files.items() if name.startswith("toolgate/")}
    cloned = [path for name in PACKAGES for path in (ROOT / name).rglob("*") if path.is_file()]
    own = [path for path in cloned if "__pycache__" not in path.parts]
    assert packed == {str(path.relative_to(ROOT)): path.read_bytes() for path in own}
    tops = {name.split("/")[0].split("-")[0] for name in files}
    assert tops == {"toolgate", "toolgate_mcp"}, "site-packages gets the package and its record, and nothing else"


def test_the_metadata_of_the_wheel_says_what_an_index_shows(built: Built) -> None:
    (file,) = (text for name, text in contents(built.wheel).items() if name.endswith("/METADATA"))
    metadata = message_from_string(file.decode())
    assert metadata["Name"] == "toolgate-mcp" and metadata["License-Expression"] == "MIT"
    assert metadata["Requires-Python"] == ">=3.11" and metadata["Description-Content-Type"] == "text/markdown"
    assert "mcp" in metadata["Keywords"].split(",") and "Typing :: Typed" in metadata.get_all("Classifier", [])
    assert not [line for line in metadata.get_all("Requires-Dist", []) if "@" in line], "an index refuses addresses"
    with tarfile.open(built.sdist) as archive:
        described = archive.extractfile(f"{built.sdist.name.removesuffix('.tar.gz')}/PKG-INFO")
        assert described is not None
        assert io.TextIOWrapper(described).read() == file.decode()


def test_each_link_of_the_description_is_to_a_file_of_the_sdist(built: Built) -> None:
    with tarfile.open(built.sdist) as archive:
        packed = {name.partition("/")[2] for name in archive.getnames()}
    links = [link.partition("#")[0] for link in page("README.md").links if "://" not in link and link[0] != "#"]
    assert len(links) > 20 and set(links) <= packed


def make_project(folder: Path, repository: str = "") -> None:
    """Write the project with a server that does nothing, at an address."""
    for name in ("README.md", "LICENSE", "setup.py"):
        shutil.copy(ROOT / name, folder)
    (folder / "server/base").mkdir(parents=True)
    for package in ("server", "server/base"):
        (folder / package / "__init__.py").write_text("")
    (folder / "server/base/version.py").write_text('VERSION = "1"\n')
    project = (ROOT / "pyproject.toml").read_text()
    if repository:
        urls = f'[project.urls]\nRepository = "{repository}"\n\n'
        project = project.replace("[project.scripts]", f"{urls}[project.scripts]")
    (folder / "pyproject.toml").write_text(re.sub(r'"toolgate\.(transports|tools|plugins)" = .*\n', "", project))


def test_a_build_takes_nothing_from_the_one_before(tmp_path: Path) -> None:
    make_project(tmp_path)
    before = tmp_path / "build/lib/toolgate/server"
    before.mkdir(parents=True)
    (before / "gone.py").write_text("")
    packed = contents(build("build_wheel", tmp_path))
    assert sorted(name.removeprefix("toolgate/server/") for name in packed if name.endswith(".py")) == [
        "__init__.py",
        "base/__init__.py",
        "base/version.py",
    ]


def test_an_index_gets_absolute_links_once_the_repository_has_an_address(tmp_path: Path) -> None:
    make_project(tmp_path, f"{ADDRESS}/")
    (file,) = (text for name, text in contents(build("build_wheel", tmp_path)).items() if name.endswith("/METADATA"))
    described = message_from_string(file.decode()).get_payload()
    links = re.findall(r"(!?)\[[^\]]*\]\(([^)\s]+)\)", str(described))
    below = [
        link.removeprefix(f"{ADDRESS}/{'raw' if mark else 'blob'}/HEAD/") for mark, link in links if link[0] != "#"
    ]
    assert below == [link for link in page("README.md").links if link[0] != "#"]


@pytest.mark.parametrize("has_tour", [False, pytest.param(True, marks=pytest.mark.soak)], ids=["in short", "with tour"])
def test_uv_installs_a_tool_that_does_all_it_does_in_the_clone(built: Built, tmp_path: Path, has_tour: bool) -> None:
    own = own_environment(tmp_path)
    install = [UV, "tool", "install", "-q", "--python", sys.executable, "-c", constraints(tmp_path), built.wheel]
    done(install, tmp_path, uv_environment(tmp_path))
    toolgate = tmp_path / "home" / ".local" / "bin" / "toolgate"

    assert first_call([toolgate], tmp_path, own)[0] == str(toolgate.resolve().with_name("toolgate"))
    if has_tour:
        toured = done([toolgate, "demo"], tmp_path, own)
        assert "All of it worked" in toured and "playwright" not in toured
    assert "toolgate-tools" in done([toolgate, "tools"], tmp_path, own)
    slept = [toolgate, "call", "sleep", "milliseconds=1", "-p", "builtin:sleep"]
    assert done(slept, tmp_path, own) == "Waited for 1 milliseconds\n"
    with site(
        tmp_path / "served", "--auth", "oauth", command=(str(toolgate),), env={"TOOLGATE_BROWSER": "none"}
    ) as place:
        assert place.ask("GET", "/ready")[2]["status"] == "ready", "the database was made, by its migrations"
        page = place.ask("GET", "/login")[1].decode()
        for asset in re.findall(r'(?:href|src)="([^"]+\.(?:css|js))"', page):
            assert place.ask("GET", asset)[0].status == 200, asset
        assert "<form" in page


@pytest.mark.soak  # 10 s, as the next
def test_uvx_adds_it_to_a_client_by_a_command_that_does_not_depend_on_its_cache(built: Built, tmp_path: Path) -> None:
    environment = uv_environment(tmp_path)
    uvx = [UV, "tool", "run", "--python", sys.executable, "--from", built.wheel, "toolgate"]
    words = first_call(uvx, tmp_path, environment)
    assert words[-5:] == ["--from", str(built.wheel), "toolgate", "--name", "mine"]
    assert environment["UV_CACHE_DIR"] not in " ".join(words)


@pytest.mark.soak
def test_pipx_with_todays_pip_installs_and_runs_it(built: Built, tmp_path: Path) -> None:
    environment = uv_environment(tmp_path)
    pipx = [UV, "tool", "run", "pipx"]
    done([*pipx, "install", "--python", sys.executable, built.wheel], tmp_path, environment)
    toolgate = tmp_path / "home" / ".local" / "bin" / "toolgate"
    assert first_call([toolgate], tmp_path, own_environment(tmp_path))[1:3] == ["--name", "mine"]
    run = [*pipx, "run", "--python", sys.executable, "--spec", built.wheel, "toolgate"]
    words = first_call(run, tmp_path, environment)
    assert words[1:] == ["run", "--spec", str(built.wheel), "toolgate", "--name", "mine"]


@pytest.mark.soak  # 50 s, mostly downloads; `make test` installs the wheel by uv
@pytest.mark.skipif(sys.version_info >= (3, 12), reason="pip 23.0 is older than Python 3.12")
def test_the_pip_of_debian_12_installs_all_that_it_needs(built: Built, tmp_path: Path) -> None:
    bin = tmp_path / "venv" / "bin"
    environment = clean_environment()
    done([sys.executable, "-m", "venv", tmp_path / "venv"], tmp_path, environment)
    install = [bin / "python", "-m", "pip", "install", "-q", "--no-compile"]
    done([*install, f"pip=={OLD_PIP}"], tmp_path, environment)
    done([*install, "-c", constraints(tmp_path), built.wheel], tmp_path, environment)
    with listening(Lighthouse) as url:
        read = [bin / "toolgate", "call", "ReadDocs", f"url={url}/", "--allow-private", "127.0.0.1"]
        assert "A lamp that turns" in done(read, tmp_path, own_environment(tmp_path))
    first_call([bin / "toolgate"], tmp_path, own_environment(tmp_path))

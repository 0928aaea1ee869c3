"""What each installer does with the distribution: over one by its former name, and after a change of the clone.

A small project with this one's pyproject.toml stands in for it, without dependencies: the installers need no network.
"""

import json
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
from tests.deploy.test_wheel import UV, WITHIN, build, clean_environment
from toolgate.tools.api.installation import DISTRIBUTION, FORMER_DISTRIBUTION

MAIN = """
from pathlib import Path
def main():
    root = Path(__file__).parents[1]
    files = ("tools/skills_builtin/toolgate-tools/SKILL.md", "transports/web/pages/home.html", "server/told.py")
    print(*((root / name).read_text().strip() for name in files), sep="|")
"""
FILES = {
    "server/__init__.py": "",
    "server/base/__init__.py": "",
    "server/base/version.py": 'VERSION = "1"\n',
    "server/__main__.py": MAIN,
    "server/told.py": "# one\n",
    "tools/__init__.py": "",
    "tools/py.typed": "",
    "tools/skills_builtin/toolgate-tools/SKILL.md": "skill one\n",
    "transports/__init__.py": "",
    "transports/web/__init__.py": "",
    "transports/web/pages/home.html": "page one\n",
    "plugins/sleep.py": "",
}


def make_project(folder: Path, name: str = DISTRIBUTION, said: str = "one") -> Path:
    """Write the small project; by its former name without what has come since."""
    for path, text in FILES.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(text.replace(" one", f" {said}"))
    for path in ("README.md", "LICENSE", "setup.py"):
        shutil.copy(ROOT / path, folder)
    project = (ROOT / "pyproject.toml").read_text()
    project = re.sub(r"(?ms)^dependencies = \[.*?^\]", "dependencies = []", project, count=1)
    if name != DISTRIBUTION:
        project = project.replace(f'name = "{DISTRIBUTION}"', f'name = "{name}"')
        project = re.sub(r"(?m)^toolgate-mcp = .*\n", "", project, count=1)
    (folder / "pyproject.toml").write_text(project)
    return folder


def run(words: Sequence[str | Path], folder: Path, code: int = 0, **more: str) -> str:
    """Return what a command prints, with a home and folders of uv of its own."""
    own = {"HOME": str(folder / "home"), "UV_TOOL_DIR": str(folder / "tools"), "UV_TOOL_BIN_DIR": str(folder / "bin")}
    environment = {
        **clean_environment(),
        **own,
        "PIPX_HOME": str(folder / "pipx"),
        "PIPX_BIN_DIR": str(folder / "bin"),
        **more,
    }
    done = subprocess.run(words, cwd=folder, env=environment, capture_output=True, text=True, timeout=WITHIN)
    assert done.returncode == code, done.stdout + done.stderr
    return done.stdout + done.stderr


@pytest.fixture(scope="module")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Return the wheel of the former name, and that of today's."""
    folder = tmp_path_factory.mktemp("wheels")
    former = make_project(folder / "former", FORMER_DISTRIBUTION, "former")
    return build("build_wheel", former), build("build_wheel", make_project(folder / "now"))


def test_the_distribution_and_its_two_commands_have_the_names_of_the_program(wheels: tuple[Path, Path]) -> None:
    with zipfile.ZipFile(wheels[1]) as archive:
        (entries,) = (archive.read(name).decode() for name in archive.namelist() if name.endswith("entry_points.txt"))
    assert wheels[1].name.startswith("toolgate_mcp-")
    target = "toolgate.server.__main__:main"
    assert dict(re.findall(r"^(\S+) = (\S+)$", entries, re.M)) == {"toolgate": target, "toolgate-mcp": target}


@pytest.mark.parametrize("goes_back", [False, pytest.param(True, marks=pytest.mark.soak)], ids=["there", "and back"])
def test_pip_leaves_one_owner_where_the_former_name_goes_first(
    wheels: tuple[Path, Path], tmp_path: Path, goes_back: bool
) -> None:
    former, now = wheels
    run([sys.executable, "-m", "venv", "--without-pip", "venv"], tmp_path)
    pip = [sys.executable, "-m", "pip", "--python", tmp_path / "venv/bin/python"]
    install = [*pip, "install", "-q", "--no-index", "--no-deps"]
    run([*install, former], tmp_path)
    assert run(["venv/bin/toolgate"], tmp_path) == "skill former|page former|# former\n"
    run(
        [*pip, "uninstall", "-q", "-y", FORMER_DISTRIBUTION, DISTRIBUTION], tmp_path
    )  # as docs/quickstart-hosted.md has it
    run([*install, now], tmp_path)
    (owner,) = (tmp_path / "venv").glob("lib/python3*/site-packages/toolgate*.dist-info")
    assert owner.name.startswith("toolgate_mcp-")
    for command in ("toolgate", "toolgate-mcp"):
        assert run([f"venv/bin/{command}"], tmp_path) == "skill one|page one|# one\n"
    if goes_back:
        run([*pip, "uninstall", "-q", "-y", FORMER_DISTRIBUTION, DISTRIBUTION], tmp_path)
        run([*install, former], tmp_path)
        assert run(["venv/bin/toolgate"], tmp_path) == "skill former|page former|# former\n"
        assert not (tmp_path / "venv/bin/toolgate-mcp").exists()


def test_uv_refuses_a_second_owner_of_the_command_until_the_former_name_is_gone(
    wheels: tuple[Path, Path], tmp_path: Path
) -> None:
    former, now = wheels
    tool = [UV, "tool", "--offline", "--no-progress", "--cache-dir", tmp_path / "cache"]
    install = [*tool, "install", "--python", sys.executable]
    run([*install, former], tmp_path)
    assert "already exists" in run([*install, now], tmp_path, code=2)
    assert run(["bin/toolgate"], tmp_path) == "skill former|page former|# former\n"
    run([*tool, "uninstall", FORMER_DISTRIBUTION], tmp_path)
    run([*install, now], tmp_path)
    assert run(["bin/toolgate"], tmp_path) == run(["bin/toolgate-mcp"], tmp_path) == "skill one|page one|# one\n"
    assert run([*tool, "list"], tmp_path).splitlines()[0].startswith(f"{DISTRIBUTION} ")


@pytest.mark.soak  # pipx comes from an index
def test_pipx_links_the_command_of_today_once_the_former_name_is_gone(
    wheels: tuple[Path, Path], tmp_path: Path
) -> None:
    former, now = wheels
    pipx = [UV, "tool", "run", "pipx"]
    install = [*pipx, "install", "--python", sys.executable]
    run([*install, former], tmp_path)
    run([*pipx, "uninstall", FORMER_DISTRIBUTION], tmp_path)
    run([*install, now], tmp_path)
    assert run(["bin/toolgate"], tmp_path) == run(["bin/toolgate-mcp"], tmp_path) == "skill one|page one|# one\n"
    assert list(json.loads(run([*pipx, "list", "--json"], tmp_path).partition("\n\n")[0])["venvs"]) == [DISTRIBUTION]


@pytest.mark.soak  # the next test compares the files
def test_uvx_builds_a_clone_again_when_any_file_of_it_has_changed(tmp_path: Path) -> None:
    clone = make_project(tmp_path / "clone")
    cache = run([UV, "cache", "dir"], tmp_path, HOME=os.environ["HOME"]).strip()  # this machine's: it has setuptools
    uvx = [UV, "tool", "run", "-q", "--cache-dir", cache, "--python", sys.executable, "--from", clone]
    assert run([*uvx, "toolgate"], tmp_path) == "skill one|page one|# one\n"
    for path, text in (
        ("tools/skills_builtin/toolgate-tools/SKILL.md", "skill two|page one|# one\n"),
        ("server/told.py", "skill two|page one|# two\n"),
    ):
        (clone / path).write_text((clone / path).read_text().replace("one", "two"))
        assert run([*uvx, "toolgate-mcp"], tmp_path) == text


def test_the_keys_of_uvs_cache_have_each_file_that_is_installed() -> None:
    project = (ROOT / "pyproject.toml").read_text()
    keys = re.findall(r'\{ file = "([^"]+)" \}', project[project.index("cache-keys = [") :])
    watched = {path for key in keys for path in ROOT.glob(key)}
    installed = {
        path
        for folder in ("server", "tools", "transports", "plugins")
        for path in (ROOT / folder).rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    assert sorted(map(str, installed - watched)) == []

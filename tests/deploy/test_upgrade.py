"""An upgrade by `git pull` from the version of the former name, and the way back, by the lines of the quickstart.

The program is the real one, installed by pip from a clone into an environment of its own. Its dependencies are links.
"""

import re
import shlex
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

from tests.deploy.test_hosted_quickstart import commit, repository, steps
from tests.deploy.test_wheel import WITHIN, clean_environment
from toolgate.server.base.version import VERSION
from toolgate.tools.api.installation import DISTRIBUTION, FORMER_DISTRIBUTION

__all__ = ["repository"]  # the fixture: a repository with this tree
FORMER_VERSION = "0.0.9"
PIP = "/opt/toolgate/bin/pip "


def to_former(folder: Path) -> None:
    """Make the tree that of the former name."""
    project, version = folder / "pyproject.toml", folder / "server/base/version.py"
    text = project.read_text().replace(f'name = "{DISTRIBUTION}"', f'name = "{FORMER_DISTRIBUTION}"')
    project.write_text(re.sub(r"(?m)^toolgate-mcp = .*\n", "", text))
    version.write_text(version.read_text().replace(f'VERSION = "{VERSION}"', f'VERSION = "{FORMER_VERSION}"'))


class Machine:
    """A clone, an environment and a state folder."""

    def __init__(self, folder: Path, repository: Path) -> None:
        self.folder, self.clone, self.prefix = folder, folder / "src", folder / "opt"
        self.run(["git", "clone", "-q", repository, self.clone], folder)
        self.run([sys.executable, "-m", "venv", "--without-pip", self.prefix], folder)
        (site,) = self.prefix.glob("lib/python3*/site-packages")
        for path in Path(sysconfig.get_path("purelib")).iterdir():
            if "toolgate" not in path.name and not (site / path.name).exists():
                (site / path.name).symlink_to(path)

    def run(self, words: list[str | Path], cwd: Path, input: bytes = b"") -> bytes:
        environment = {**clean_environment(), "HOME": str(self.folder), "TOOLGATE_STATE": str(self.folder / "state")}
        done = subprocess.run(words, cwd=cwd, env=environment, input=input, capture_output=True, timeout=WITHIN)
        assert done.returncode == 0, (words, done.stdout[-2000:], done.stderr[-2000:])
        return done.stdout

    def toolgate(self, *words: str, input: bytes = b"") -> bytes:
        (self.folder / "work").mkdir(exist_ok=True)
        return self.run([self.prefix / "bin" / "toolgate", *words], self.folder / "work", input)

    def install(self, line: str) -> None:
        """Run a line of the page that begins with pip."""
        pip = [sys.executable, "-m", "pip", "--python", self.prefix / "bin" / "python"]
        self.run([*pip, *shlex.split(line.removeprefix(PIP), comments=True)], self.clone)


@pytest.mark.soak  # pip builds and installs the program three times
def test_a_file_survives_an_upgrade_by_git_pull_and_the_way_back(tmp_path: Path, repository: Path) -> None:
    (upgrade,) = (step.lines for step in steps() if "git pull" in step.lines)
    installs = [line for line in upgrade if line.startswith(PIP) and "--require-hashes" not in line]
    assert len(installs) == 2
    now = (repository / "pyproject.toml").read_text(), (repository / "server/base/version.py").read_text()
    to_former(repository)
    commit(repository, "former")
    machine = Machine(tmp_path, repository)
    machine.install(f"{PIP}install -q --no-deps --no-build-isolation .")
    machine.toolgate("call", "Bash", "command=echo precious > thesis.txt")
    machine.toolgate("user", "add", "ada", input=b"correct horse\n")
    backup = machine.toolgate("backup", "-")

    for name, text in zip(("pyproject.toml", "server/base/version.py"), now, strict=True):
        (repository / name).write_text(text)
    commit(repository, "now")
    machine.run(["git", "pull", "-q"], machine.clone)
    for line in installs:
        machine.install(line)
    assert machine.toolgate("--version") == f"toolgate {VERSION}\n".encode()
    assert machine.toolgate("call", "Bash", "command=cat thesis.txt") == b"precious\n"
    machine.toolgate("user", "add", "bob", input=b"correct horse\n")

    machine.toolgate("restore", "-", "--replace", input=backup)
    machine.run(["git", "checkout", "-q", "HEAD~1"], machine.clone)
    for line in installs:
        machine.install(line)
    assert machine.toolgate("--version") == f"toolgate {FORMER_VERSION}\n".encode()
    assert machine.toolgate("call", "Bash", "command=cat thesis.txt") == b"precious\n"
    listed = machine.toolgate("user", "list")
    assert b"ada" in listed and b"bob" not in listed
    (owner,) = machine.prefix.glob("lib/python3*/site-packages/toolgate*.dist-info")
    assert owner.name.startswith(f"{FORMER_DISTRIBUTION}-")

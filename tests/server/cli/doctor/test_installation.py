"""How the program was installed: which command adds an extra to it, and what its former name leaves in the way."""

import json
import shlex
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Mapping
from importlib import metadata
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.clients.raw_client import ROOT
from toolgate.tools.api.installation import DISTRIBUTION

SITE = Path(sysconfig.get_path("purelib"))
PLAYWRIGHT = next(line.partition(";")[0] for line in metadata.requires(DISTRIBUTION) or () if "playwright" in line)
CLONE = {"url": "file:///home/ada/my%20toolgate", "dir_info": {}}
ASK = "from toolgate.tools.api.installation import name_extra; print(name_extra('browser'))"
LOOK = """
import asyncio, os
from toolgate.server.cli.doctor.installation import installation
from toolgate.server.cli.doctor.report import CheckNote, CheckError
from toolgate.server.config import load
try:
    found = asyncio.run(installation(load.load({}, dict(os.environ))))
    print(*((found.finding, found.remedy) if isinstance(found, CheckNote) else (found,)), sep="\\n")
except CheckError as error:
    print(error, error.remedy, sep="\\n")
"""


class Environment(NamedTuple):
    """A virtual environment with this program, as an installer has left it."""

    prefix: Path

    @property
    def site(self) -> Path:
        return self.prefix / "lib" / f"python{sys.version_info[0]}.{sys.version_info[1]}" / "site-packages"

    def add(
        self, name: str, origin: Mapping[str, Any] | None = None, entry: str = "toolgate.server.__main__:main"
    ) -> None:
        """Add the record of a distribution."""
        record = self.site / f"{name.replace('-', '_')}-0.1.0.dist-info"
        record.mkdir()
        needed = "".join(f"Requires-Dist: {line}\n" for line in metadata.requires(DISTRIBUTION) or ())
        (record / "METADATA").write_text(f"Metadata-Version: 2.4\nName: {name}\nVersion: 0.1.0\n{needed}")
        (record / "entry_points.txt").write_text(f"[console_scripts]\ntoolgate = {entry}\n")
        if origin is not None:
            (record / "direct_url.json").write_text(json.dumps(origin))

    def run(self, program: str, **variables: str) -> list[str]:
        command = [self.prefix / "bin" / "python", "-c", program]
        done = subprocess.run(
            command, env={"PATH": "/usr/bin:/bin", **variables}, capture_output=True, text=True, timeout=60
        )
        assert done.returncode == 0, done.stderr
        return done.stdout.splitlines()


def make_environment(prefix: Path, *, with_all: bool = False) -> Environment:
    """Return an environment of this Python: with the program and msgspec, or with all that the clone has."""
    made = Environment(prefix)
    made.site.mkdir(parents=True)
    (prefix / "bin").mkdir()
    (prefix / "bin" / "python").symlink_to(Path(sys.executable).resolve())
    (prefix / "pyvenv.cfg").write_text(f"home = {Path(sys.executable).resolve().parent}\n")
    for path in SITE.glob("msgspec*"):
        (made.site / path.name).symlink_to(path)
    (made.site / "program.pth").write_text(f"{ROOT / '.links'}\n{SITE if with_all else ''}\n")
    return made


GIT = {
    "url": "https://git.example/ada/toolgate",
    "vcs_info": {"vcs": "git", "requested_revision": "v1", "commit_id": "0"},
}
WAYS: dict[
    str, tuple[str, str, Mapping[str, Any] | None, str]
] = {  # the folder, a marker in it, the origin → the command
    "pip": ("venv", "", CLONE, "{prefix}/bin/python -m pip install '{playwright}'"),
    "uv pip": ("venv", "pyvenv.cfg", CLONE, "uv pip install --python {prefix}/bin/python '{playwright}'"),
    "pipx": ("venvs/toolgate-mcp", "pipx_metadata.json", CLONE, "pipx inject toolgate-mcp '{playwright}'"),
    "pipx run": (".cache/0123456789abcde", "", CLONE, "pipx run --spec '/home/ada/my toolgate[browser]' toolgate"),
    "uv tool": ("tools/toolgate-mcp", "uv-receipt.toml", CLONE, "uv tool install '/home/ada/my toolgate[browser]'"),
    "uvx": ("archive-v0/abc", "", CLONE, "uvx --from '/home/ada/my toolgate[browser]' toolgate"),
    "uvx of an index": ("environments-v2/abc", "", None, "uvx --from 'toolgate-mcp[browser]' toolgate"),
    "uvx of git": (
        *("archive-v0/abc", "", GIT),
        "uvx --from 'toolgate-mcp[browser] @ git+https://git.example/ada/toolgate@v1' toolgate",
    ),
    "uvx of git with a password": (
        *("archive-v0/abc", "", {**GIT, "url": "https://ada:secret@git.example/ada/toolgate"}),
        "uvx --from 'toolgate-mcp[browser] @ git+https://git.example/ada/toolgate@v1' toolgate",
    ),
    "uvx of git by ssh": (
        *("archive-v0/abc", "", {**GIT, "url": "ssh://git@git.example/ada/toolgate"}),
        "uvx --from 'toolgate-mcp[browser] @ git+ssh://git@git.example/ada/toolgate@v1' toolgate",
    ),
    "image": (
        *("opt/toolgate", "container-image", CLONE),
        "docker build --build-arg CHROMIUM=1 -f deploy/Dockerfile -t toolgate .",
    ),
}


@pytest.mark.brief("pip", "pipx", "uv tool", "uvx of git with a password", "image")
@pytest.mark.parametrize(("folder", "marker", "origin", "command"), WAYS.values(), ids=WAYS)
def test_an_extra_is_added_by_the_installer_that_was_used(
    tmp_path: Path, folder: str, marker: str, origin: Mapping[str, Any] | None, command: str
) -> None:
    environment = make_environment(tmp_path / folder)
    environment.add(DISTRIBUTION, origin)
    if marker:
        with (environment.prefix / marker).open("a") as file:
            file.write("uv = 0.9.1\n" if marker == "pyvenv.cfg" else "")
    told = environment.run(ASK)
    assert told == [command.format(prefix=environment.prefix, playwright=PLAYWRIGHT)]
    assert shlex.split(told[0])


def test_an_extra_of_a_clone_is_added_by_its_make(tmp_path: Path) -> None:
    environment = make_environment(tmp_path / "clone" / ".venv")
    environment.add(DISTRIBUTION, {"url": (tmp_path / "clone").as_uri(), "dir_info": {"editable": True}})
    assert environment.run(ASK) == [f"make -C {tmp_path / 'clone'} setup"]


def test_doctor_finds_the_former_distribution_beside_this_one_and_says_how_to_leave_one(tmp_path: Path) -> None:
    environment = make_environment(tmp_path / "venv", with_all=True)
    environment.add(DISTRIBUTION, CLONE)
    assert "by pip from /home/ada/my toolgate, in " in environment.run(LOOK)[0]
    environment.add("toolgate", CLONE)
    finding, remedy = environment.run(LOOK)
    python = environment.prefix / "bin" / "python"
    assert finding == (
        f"its former distribution toolgate is still in {environment.prefix}, and owns the same files: "
        "removing it alone would break this one"
    )
    assert remedy == (
        f"{python} -m pip uninstall -y toolgate, then {python} -m pip install --force-reinstall --no-deps "
        "'/home/ada/my toolgate'"
    )
    shutil.rmtree(environment.site / "toolgate-0.1.0.dist-info")
    environment.add("toolgate", entry="toolgate.cli:main")
    assert "another project's toolgate is in the same environment" in environment.run(LOOK)[0]


def test_doctor_finds_a_command_that_is_still_the_former_installation(tmp_path: Path) -> None:
    environment = make_environment(tmp_path / "venvs" / "toolgate-mcp", with_all=True)
    environment.add(DISTRIBUTION, CLONE)
    former = make_environment(tmp_path / "venvs" / "toolgate")
    former.add("toolgate", CLONE)
    (former.prefix / "pipx_metadata.json").touch()
    (former.prefix / "bin" / "toolgate").touch(mode=0o755)
    (tmp_path / "bin").mkdir()
    command = tmp_path / "bin" / "toolgate"
    command.symlink_to(former.prefix / "bin" / "toolgate")
    finding, remedy = environment.run(LOOK, PATH=f"{tmp_path / 'bin'}:/usr/bin:/bin")
    assert finding == f"{command} is an earlier installation, in {former.prefix}"
    assert remedy == "pipx uninstall toolgate, then install this one again"
    former.add(DISTRIBUTION)
    assert "by pip from" in environment.run(LOOK, PATH=f"{tmp_path / 'bin'}:/usr/bin:/bin")[0]

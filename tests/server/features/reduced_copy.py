"""Copy the program or the whole repository without features: their folders and their rows are deleted in the copy."""

import re
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Collection, Iterable
from pathlib import Path

from tests.clients.raw_client import ROOT
from tests.servers.forked_command import COMMAND

PROGRAM = ("server", "tools", "transports", "plugins")
ROWS = "server/config/feature_rows.py"
LEFT_OUT = shutil.ignore_patterns("node_modules")


def copy_without(features: Collection[str], target: Path, tops: Iterable[str] = PROGRAM) -> None:
    """Copy folders and files of the repository into `target`, with what is compiled: it fits files of the same time."""
    for top in tops:
        if (ROOT / top).is_dir():
            shutil.copytree(ROOT / top, target / top, symlinks=True, ignore=LEFT_OUT)
        else:
            shutil.copy2(ROOT / top, target / top)
    rows = target / ROWS
    text = rows.read_text()
    for feature in features:
        shutil.rmtree(target / "server/features" / feature)
        row = rf'    FeatureRow\(\n(?:        .*\n)*?        \w+="{feature}\..*\n(?:        .*\n)*?    \),\n'
        text, count = re.subn(row, "", text)
        assert count == 1 and feature not in text
    rows.write_text(text)


def copy_repository(features: Collection[str], target: Path) -> Path:
    """Copy the repository without features and without what is hidden in it, and return a Python that has the copy
    installed beside the packages of this one."""
    shown = [path.name for path in ROOT.iterdir() if not path.name.startswith(".") and path.name != "build"]
    target.mkdir()
    copy_without(features, target, (*shown, ".links"))
    subprocess.run((sys.executable, "-m", "venv", "--without-pip", target / ".venv"), check=True)
    python = target / ".venv/bin/python"
    (packages,) = (target / ".venv/lib").glob("python*/site-packages")
    for path in Path(sysconfig.get_path("purelib")).iterdir():
        if path.suffix != ".pth":  # not the one that has this program installed
            (packages / path.name).symlink_to(path)
    (packages / "toolgate").mkdir()
    (packages / "toolgate/__init__.py").write_text(f"__path__ = [{str(target)!r}]\n")
    _, script = Path(COMMAND).read_text().split("\n", 1)
    command = python.with_name("toolgate")
    command.write_text(f"#!{python}\n{script}")
    command.chmod(0o755)
    return python

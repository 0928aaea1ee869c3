"""Describe the package by README.md, with absolute links if pyproject.toml has the address of the repository, and build
it from the files of today.

A package index shows the description away from the files that its links lead to. setuptools packs what an earlier build
left in build/, so that an update from a clone would keep modules that are gone.
"""

import re
import shutil
import tomllib
from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py

ROOT = Path(__file__).parent
RELATIVE_LINK = re.compile(r"(!?)\[([^\]]*)\]\((?![a-z]+:|#|/)([^)\s]+)\)")
ADDRESSES = ("Repository", "Source")  # well-known labels of [project.urls]


def describe(readme: str, repository: str) -> str:
    """Return the text with each relative link below the repository's newest commit; a picture needs the file itself."""

    def to_absolute(found: re.Match[str]) -> str:
        mark, text, path = found.groups()
        return f"{mark}[{text}]({repository.rstrip('/')}/{'raw' if mark else 'blob'}/HEAD/{path})"

    return RELATIVE_LINK.sub(to_absolute, readme) if repository else readme


class FreshBuild(build_py):
    """Build the package without what an earlier build left."""

    def run(self) -> None:
        if not self.editable_mode:
            shutil.rmtree(self.build_lib, ignore_errors=True)
        super().run()


project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
repository = next((project["urls"][label] for label in ADDRESSES if label in project.get("urls", {})), "")
setup(
    long_description=describe((ROOT / "README.md").read_text(encoding="utf-8"), repository),
    long_description_content_type="text/markdown",
    cmdclass={"build_py": FreshBuild},
)

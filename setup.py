"""Describe the package by README.md, with absolute links if pyproject.toml has the address of the repository.

A package index shows the description away from the files that its links lead to.
"""

import re
import tomllib
from pathlib import Path

from setuptools import setup

ROOT = Path(__file__).parent
RELATIVE_LINK = re.compile(r"(!?)\[([^\]]*)\]\((?![a-z]+:|#|/)([^)\s]+)\)")
ADDRESSES = ("Repository", "Source")  # well-known labels of [project.urls]


def describe(readme: str, repository: str) -> str:
    """Return the text with each relative link below the repository's newest commit; a picture needs the file itself."""

    def to_absolute(found: re.Match[str]) -> str:
        mark, text, path = found.groups()
        return f"{mark}[{text}]({repository.rstrip('/')}/{'raw' if mark else 'blob'}/HEAD/{path})"

    return RELATIVE_LINK.sub(to_absolute, readme) if repository else readme


project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
repository = next((project["urls"][label] for label in ADDRESSES if label in project.get("urls", {})), "")
setup(
    long_description=describe((ROOT / "README.md").read_text(encoding="utf-8"), repository),
    long_description_content_type="text/markdown",
)

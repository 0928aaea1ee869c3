"""No text tells people to install `toolgate`, which is another project's at the package index."""

import re

import pytest

from tests.architecture import rooms
from tests.clients.raw_client import ROOT

INSTALLERS = (
    r"pip3? install|uv pip install|uv add|uv tool (?:install|run|upgrade)|uvx|pipx (?:install|run|upgrade|inject)"
)
OPTIONS = r"(?:-(?!-from|-spec)[\w-]+(?:[ =][^\s-]\S*)? )*(?:--(?:from|spec)[ =])?"
BARE = re.compile(rf"(?:{INSTALLERS}) {OPTIONS}[\"'`]*toolgate(?![\w./-])|toolgate\[[a-z]")


def texts() -> dict[str, str]:
    """Return all that people read: the program, its pages, the docs and what is deployed, by path."""
    files = [ROOT / path for path in rooms.sources()]
    for pattern in (
        "*.md",
        "Makefile",
        "docs/*.md",
        "transports/web/pages/*",
        "tools/skills_builtin/**/*",
        "plugins/**/*.py",
    ):
        files += [path for path in ROOT.glob(pattern) if path.is_file()]
    files += [path for path in (ROOT / "deploy").rglob("*") if path.is_file()]
    return {str(file.relative_to(ROOT)): file.read_text() for file in files}


def test_no_text_installs_the_package_of_another_project() -> None:
    found = {path: BARE.findall(text) for path, text in texts().items() if path != "CHANGELOG.md"}
    assert {path: each for path, each in found.items() if each} == {}


@pytest.mark.parametrize(
    "text",
    [
        "pip install 'toolgate[browser]'",
        "pip install toolgate",
        "uvx toolgate install",
        "uvx --from toolgate toolgate",
        "pipx install --force toolgate",
        "pipx run toolgate",
        "uv tool install --python 3.12 toolgate",
    ],
)
def test_a_bare_name_is_found(text: str) -> None:
    assert BARE.search(text)


@pytest.mark.parametrize(
    "text",
    [
        "uvx --from . toolgate",
        "uvx toolgate-mcp",
        "pipx install .",
        "pipx run --spec . toolgate",
        "pip uninstall toolgate",
        "uv tool install 'toolgate-mcp[browser]'",
    ],
)
def test_a_name_that_is_right_passes(text: str) -> None:
    assert not BARE.search(text)

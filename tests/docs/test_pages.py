"""Properties of all pages that need no run: links lead somewhere, options exist."""

import json
import re
import subprocess
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.clients.raw_client import ROOT
from tests.docs.pages import Page, pages
from toolgate.server.cli.parsing.command import flags_of
from toolgate.server.cli.parsing.commands import COMMANDS
from toolgate.server.features.clients.clients import CLIENTS
from toolgate.tools.builtin.ask import parse_questions

OURS = {flag for command in COMMANDS.values() for flag in flags_of(command)} | {"-h", "--help", "-V", "--version"}
THEIRS = {"--scope": "Claude Code's"}  # flags of other programs that the text names
FLAG = re.compile(r"(?<![\w-])--[a-z][a-z-]*")
COMMAND = re.compile(r"(?:\w+=\S* |echo .* \| )*(?:\S*/)?toolgate ")
FILE = re.compile(r"(?:docs|deploy|server|tests|tools|transports)/[\w./-]*(?:\.\w+|/)")


def compiled(text: str) -> None:
    compile(text, "page", "exec")


def understood(text: str) -> None:
    """Check the syntax by bash, without running it."""
    done = subprocess.run(["bash", "-n"], input=text, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr


PARSERS: dict[str, Callable[[str], Any]] = {
    "python": compiled,
    "json": json.loads,
    "toml": tomllib.loads,
    "yaml": lambda text: list(yaml.safe_load_all(text)),
    "sh": understood,
}
PLAIN = {"text", "html", "ini", "nginx", "caddy", "dockerfile"}  # shown only, or needs a program of its own


@pytest.mark.parametrize("page", pages(), ids=str)
def test_every_block_is_what_it_says(page: Page) -> None:
    assert {block.language for block in page.blocks} <= {*PARSERS, *PLAIN}
    for block in page.of(*PARSERS.keys() - {"sh"}):
        PARSERS[block.language](block.text)
    understood("\n".join(block.text for block in page.of("sh")))


@pytest.mark.parametrize("page", pages(), ids=str)
def test_a_block_that_is_not_run_says_why(page: Page) -> None:
    for block in page.blocks:
        assert not block.note or block.file or block.excuse, f"{block}: {block.note!r}"


@pytest.mark.parametrize("page", pages(), ids=str)
def test_every_link_leads_somewhere(page: Page) -> None:
    known = {str(one.path): one for one in pages()}
    for link in page.links:
        place, _, anchor = link.partition("#")
        if "://" in place:
            continue
        target = (page.path.parent / place).resolve() if place else page.path
        assert target.exists(), f"{page}: {link}"
        assert not anchor or anchor in known[str(target)].anchors, f"{page}: {link}"


@pytest.mark.parametrize("page", pages(), ids=str)
def test_every_file_that_is_named_is_there(page: Page) -> None:
    for code in page.code:
        found = FILE.fullmatch(code)
        assert found is None or Path(ROOT, code).exists(), f"{page}: {code}"


@pytest.mark.parametrize("page", pages(), ids=str)
def test_every_option_that_is_named_is_one(page: Page) -> None:
    """In the text a word that begins with `--`; in commands those after `toolgate`."""
    lines = [line for block in page.of("sh") for line in block.text.replace("\\\n", " ").splitlines()]
    ours = [code for code in page.code if code.startswith("--") or COMMAND.match(code)]
    ours += [line for line in lines if COMMAND.match(line)]
    named = {flag for word in ours for flag in FLAG.findall(re.sub(r"'[^']*'", "", word))}
    assert named <= OURS | THEIRS.keys(), f"{page}: {named - OURS}"


def test_each_client_has_a_section_with_what_was_tried_and_what_its_user_sees() -> None:
    sections = re.split(r"^## ", (ROOT / "docs/clients.md").read_text(), flags=re.M)
    for name, client in CLIENTS.items():
        (section,) = (each for each in sections if each.startswith(f"{client.title}\n"))
        assert f"<!-- client: {name} -->" in section
        assert "\n- **Tried here.** " in section and "\n- **What you see.** " in section


def test_every_screen_and_the_terminal_are_shown_where_their_reader_looks() -> None:
    shown = {Path(link).name for page in pages() for link in page.links if "pictures/" in link}
    drawn = {path.name for path in (ROOT / "docs/pictures").iterdir()}
    assert shown <= drawn
    assert {name.partition("-desktop")[0].partition("-phone")[0] for name in shown} == {
        name.partition("-desktop")[0].partition("-phone")[0] for name in drawn
    }


def test_the_questions_shown_can_be_asked() -> None:
    (shown,) = next(page for page in pages() if page.name == "docs/tools.md").of("json")
    assert len(parse_questions(shown.text)) == 2


def test_the_way_from_nothing_is_the_same_in_the_overview_and_where_it_is_run() -> None:
    overview, run = ([one for one in pages() if one.name == name] for name in ("docs/overview.md", "docs/proxies.md"))
    (shown,) = (block.text for block in overview[0].of("sh") if "caddy run" in block.text)
    for page in run:
        assert shown in [block.text for block in page.of("sh")]

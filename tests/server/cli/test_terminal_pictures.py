"""The pictures of the terminal show what the program prints today."""

import re
from html import unescape

import pytest

from tests.needed_features import require_for
from tests.server.cli import terminal_pictures
from tests.server.cli.terminal_pictures import FOLDER, SCENES, draw, play

TEXT = re.compile(r"<text [^>]*>([^<]*)</text>")
OF_MACHINE = re.compile(
    r"[0-9]|bwrap|network|namespaces|chromium|filter|^(ok|note|skip)$"
)  # differs from one to another


def texts(svg: str) -> list[str]:
    """Return the texts that do not depend on the machine."""
    return [text for found in TEXT.findall(svg) if not OF_MACHINE.search(text := unescape(found))]


def test_the_picture_of_the_terminal_shows_what_the_program_prints() -> None:
    scene = SCENES["terminal"]
    for command in scene.commands:
        require_for(command.removeprefix("toolgate "))
    drawn = draw(play(scene), scene.title)
    assert texts(drawn) == texts((FOLDER / "terminal.svg").read_text()), "make pictures draws it again"
    assert "paste into a client" in drawn and "\033" not in drawn


@pytest.mark.parametrize("name", SCENES)
def test_a_picture_is_small_and_asks_for_nothing(name: str) -> None:
    svg = (FOLDER / f"{name}.svg").read_text()
    assert len(svg) < 16_384 and svg.count("http://www.w3.org/2000/svg") == 1
    assert not re.search(r"<script|<image|<style|href|url\(|@import", svg)


def test_text_is_drawn_at_its_column_in_its_colour_and_escaped() -> None:
    (drawn,) = TEXT.findall(draw(["\033[1;32m<a>  b\033[0m"], "t").replace("&lt;a&gt;", "[a]"))[:1]
    assert drawn == "[a]"
    svg = draw(["  \033[2mone two\033[0m  three"], "t")
    cell, margin = terminal_pictures.CELL, terminal_pictures.MARGIN
    assert (
        f'<text x="{margin + 2 * cell:g}" y="34" textLength="{7 * cell:g}" fill="{terminal_pictures.FAINT}">one two<'
        in svg
    )
    assert f'<text x="{margin + 11 * cell:g}" y="34" textLength="{5 * cell:g}">three<' in svg

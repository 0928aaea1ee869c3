"""What the pages tell people to run, run as they would."""

import contextlib
from pathlib import Path

import pytest

from tests.docs.pages import Page, pages
from tests.docs.reader import Reader

# Their commands are run where the parts are that they need.
ELSEWHERE: dict[str, str] = {}


@pytest.mark.parametrize("page", [page for page in pages() if page.of("sh")], ids=str)
def test_every_command_of_a_page_works_and_prints_what_the_page_says(page: Page, tmp_path: Path) -> None:
    with contextlib.ExitStack() as running:
        reader = Reader(tmp_path, running)
        for block in page.blocks:
            reader.take(block)

"""The commands of the pages, run as a reader would."""

import contextlib
from pathlib import Path

import pytest

from tests.clients.raw_client import ROOT
from tests.docs.pages import Page, pages
from tests.docs.reader import Reader

# Pages whose commands need more than a shell, and the test that runs them with it.
ELSEWHERE = {
    "docs/proxies.md": "tests/deploy/test_proxies_docs.py",
    "docs/replicas.md": "tests/docs/test_replicas_page.py",
    "docs/state.md": "tests/docs/test_state_page.py",
}


# `make soak` runs these pages, whose commands other tests have, and `make test` the rest
SOAKED = ("docs/nodes.md", "docs/options.md", "docs/oversight.md", "docs/overview.md")
PAGES = [
    pytest.param(page, id=str(page), marks=pytest.mark.soak if page.name in SOAKED else ())
    for page in pages()
    if page.of("sh") and page.name not in ELSEWHERE
]


@pytest.mark.parametrize("page", PAGES)
def test_every_command_of_a_page_works_and_prints_what_the_page_says(page: Page, tmp_path: Path) -> None:
    with contextlib.ExitStack() as running:
        reader = Reader(tmp_path, running)
        for block in page.blocks:
            reader.take(block)


def test_pages_that_are_run_elsewhere_are() -> None:
    for name, test in ELSEWHERE.items():
        assert not Path(ROOT, name).exists() or Path(name).name in Path(ROOT, test).read_text(), name

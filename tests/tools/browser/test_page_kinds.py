"""Chromium's pages become text as those of the plain fetch do: each kind of content, and never less."""

import asyncio
import os

import pytest

from tests.tools.fake_web_site import Answer, site
from tests.tools.tool_calls import lend, text
from tests.tools.web.page_kinds import KINDS, page
from toolgate.tools.api.context import Context
from toolgate.tools.browser.find_chromium import find_chromium
from toolgate.tools.builtin.docs import read_docs
from toolgate.tools.pages.local_page_reader import LocalPageReader
from toolgate.tools.web.fetch import Web

BOUND = 120.0  # seconds for all pages: test machines are busy
CHROMIUM = ("chromium-headless-shell", "chromium")


def read_all(pages: dict[str, Answer]) -> dict[str, str]:
    """Return the answers of ReadDocs for the paths of a site, read at once in one browser."""
    chromium = next(filter(None, (find_chromium(kind, os.environ.get("PATH")) for kind in CHROMIUM)), None)
    assert chromium is not None

    async def read(reader: LocalPageReader, url: str, principal: str) -> str:
        nothing = None
        context = Context(lend(reader=reader, principal=principal), nothing)  # type: ignore[arg-type]
        return text(await read_docs.run({"url": url}, context))

    async def scenario() -> dict[str, str]:
        async with site(pages) as place:
            reader = LocalPageReader(Web(["127.0.0.1"]), chromium)
            try:
                reading = (read(reader, place.url(path), str(number % 3)) for number, path in enumerate(pages))
                return dict(zip(pages, await asyncio.gather(*reading), strict=True))
            finally:
                await reader.close()

    return asyncio.run(asyncio.wait_for(scenario(), BOUND))


@pytest.fixture(scope="module")
def answers() -> dict[str, str]:
    """The answer for one page of each kind, which holds all of its fragments."""
    pages: dict[str, Answer] = {}
    for number, (kind, fragments) in enumerate(KINDS.items()):
        body = page(*(fragment.html for fragment in fragments), title=kind)
        pages[f"/{number}"] = (200, {"content-type": "text/html"}, body)
    return dict(zip(KINDS, read_all(pages).values(), strict=True))


@pytest.mark.parametrize("kind", KINDS)
def test_a_kind_of_content_becomes_text_in_chromium_too(answers: dict[str, str], kind: str) -> None:
    answer = answers[kind]
    assert "fetched without a browser" not in answer
    missing = [(each.name, words) for each in KINDS[kind] for words in each.present if words not in answer]
    assert missing == []
    assert (answer.count("passes"), answer.count("lens")) >= (4, 4)
